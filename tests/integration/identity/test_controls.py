"""Each planted fault is caught, in float32 and bfloat16, and a blunter check lets each of them through."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from alora.identity import controls
from alora.identity.capture import Call, Capture, capture
from alora.identity.certificate import ControlRecord
from alora.identity.equality import ACTIVATION, PREFIX, KVFinding, compare, inert_findings, prefix_findings
from tests.integration.identity.subjects import DTYPES, Stage, stage, toy_base, write_adapter

FAMILIES = ("qwen3", "gemma3")


@pytest.fixture(scope="module", params=[(family, dtype) for family in FAMILIES for dtype in DTYPES], ids=str)
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    family, dtype = request.param
    base = toy_base(family)
    return stage(base, write_adapter(base, tmp_path_factory.mktemp(family) / "adapter"), dtype)


def faulty(staged: Stage, plant, call: Call) -> tuple[Capture, Capture]:
    """The base's capture and the faulty one."""
    return staged.bases[call.name], plant(staged.models, call)


def caught(staged: Stage, plant) -> dict[str, list[KVFinding]]:
    """Findings by call name; the faults of every call must be found, not only those of a lucky one."""
    return {call.name: compare(call, *faulty(staged, plant, call), staged.reached) for call in staged.calls}


def tolerant(one: Tensor, other: Tensor) -> Tensor:
    """The blunt comparison: a relative tolerance of the dtype's precision, as ``torch.testing.assert_close`` has it."""
    rtol, atol = (1.6e-2, 1e-5) if one.dtype == torch.bfloat16 else (1.3e-6, 1e-5)
    return ~torch.isclose(one, other, rtol=rtol, atol=atol)


def loose(one: Tensor, other: Tensor) -> Tensor:
    """Another: within 2 % of the largest element, as a check needs that compares bfloat16 runs of different shapes."""
    return (one - other).abs() > 0.02 * one.abs().max()


def test_the_honest_adapter_has_no_finding(staged: Stage):
    for call in staged.calls:
        honest = capture(staged.models.alora, call, alora_offsets=call.offsets())
        assert compare(call, staged.bases[call.name], honest, staged.reached) == []


def test_standard_lora_is_caught(staged: Stage):
    for name, findings in caught(staged, controls.standard_lora).items():
        assert findings[0].check == PREFIX, name
        assert findings[0].position == 0
    call = staged.batch  # a check for life alone, without the prefix, is content
    assert inert_findings(call, *faulty(staged, controls.standard_lora, call), staged.reached) == []


def test_faint_lora_is_caught(staged: Stage):
    assert all(findings for findings in caught(staged, controls.faint_lora).values())
    kinds = {finding.check for findings in caught(staged, controls.faint_lora).values() for finding in findings}
    assert PREFIX in kinds
    call = staged.batch
    assert prefix_findings(call, *faulty(staged, controls.faint_lora, call), differs=loose) == []


def test_one_token_early_is_caught(staged: Stage):
    for call in staged.calls:
        findings = prefix_findings(call, *faulty(staged, controls.early_activation, call))
        assert {finding.row for finding in findings} == set(range(len(call.activation_B)))
        for finding in findings:
            activation = call.activation_B[finding.row] - call.padding_B[finding.row]
            assert finding.position == activation - 1
    blunt = _shifted(staged.batch, -1)  # an off-by-one check, that stops one token short of the activation
    assert prefix_findings(blunt, *faulty(staged, controls.early_activation, staged.batch)) == []


def test_one_token_late_is_caught(staged: Stage):
    for call in staged.calls:
        base, late = faulty(staged, controls.late_activation, call)
        assert {finding.site for finding in inert_findings(call, base, late, staged.reached)} == set(
            map(str, staged.reached)
        )
        assert prefix_findings(call, base, late) == []  # a check of the prefix alone is content
        blunt = _shifted(call, 1)  # and so is one that looks for a difference somewhere in the suffix
        assert inert_findings(blunt, base, late, staged.reached) == []


def test_one_ulp_is_caught(staged: Stage):
    for name, findings in caught(staged, controls.one_ulp).items():
        assert [(finding.check, finding.site, finding.elements) for finding in findings] == [
            (PREFIX, "layer 1 V", 1)
        ], name
    call = staged.batch
    assert prefix_findings(call, *faulty(staged, controls.one_ulp, call), differs=tolerant) == []


@pytest.mark.parametrize("plant", [controls.zero_b, controls.silently_off], ids=["B = 0", "off"])
def test_dead_adapter_is_caught(staged: Stage, plant):
    for name, findings in caught(staged, plant).items():
        assert {finding.check for finding in findings} == {ACTIVATION}, name
        assert {finding.site for finding in findings} == set(map(str, staged.reached))
    call = staged.batch  # a check of the prefix alone is content with an adapter that does nothing
    assert prefix_findings(call, *faulty(staged, plant, call)) == []


def test_scaling_b_is_undone(staged: Stage):
    call = staged.calls[0]
    run = partial(capture, staged.models.alora, call, alora_offsets=call.offsets())
    before = run()
    controls.zero_b(staged.models, call)
    after = run()
    assert all(torch.equal(tensor, after.sites[site]) for site, tensor in before.sites.items())


def test_an_uncaught_control_is_reported(staged: Stage):
    """An adapter that is no fault at all must come back as not caught, or the certificate's word means nothing."""
    honest = controls.Control(
        "no fault", (PREFIX, ACTIVATION), lambda models, call: capture(models.alora, call, alora_offsets=call.offsets())
    )
    result = controls.plant(honest, staged.models, staged.calls, staged.bases, staged.reached)
    assert result == ControlRecord("no fault", False, "none")


def _shifted(call: Call, by: int) -> Call:
    return replace(call, activation_B=tuple(index + by for index in call.activation_B))
