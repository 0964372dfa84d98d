"""One fault that a single check sees is enough to fail a certificate, and no other check hides it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft.tuners.lora import variants

from alora.adapter.folder import load_adapter, save_adapter
from alora.config.schema import IdentitySettings
from alora.errors import AdapterError
from alora.identity.capture import capture
from alora.identity.certify import certify
from alora.identity.controls import Control
from alora.identity.equality import PREFIX, adapted_modules, record_active
from tests.integration.identity.subjects import adapted, opt_base, stage, toy_base, toy_prompts, write_adapter

QUICK = IdentitySettings(dtypes=["float32"], negative_controls=False)


def _scaled(folder: Path, factor) -> Path:
    """The adapter of ``folder``, each B multiplied by ``factor(module)``, in a folder of its own."""
    weights = load_adapter(folder)
    tensors = {name: (a_rd, b_or * factor(name)) for name, (a_rd, b_or) in weights.tensors.items()}
    save_adapter(replace(weights, tensors=tensors), folder.with_name("scaled"), "toy")
    return folder.with_name("scaled")


@pytest.mark.parametrize(
    "absent",
    [
        lambda name: name == "model.layers.1.mlp.up_proj",
        lambda name: ".layers.0." not in name,
        lambda name: ".layers.1." in name,
        lambda name: name != "model.layers.0.self_attn.v_proj",
    ],
    ids=["one module", "all but layer 0", "layer 1", "all but one module"],
)
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_partly_absent_adapter_fails_and_each_absent_module_is_named(family, absent, tmp_path: Path):
    base, folder = adapted(tmp_path, family)
    certificate = certify(base, _scaled(folder, lambda name: float(not absent(name))), toy_prompts(), QUICK)
    named = [finding.detail.split(":")[0] for finding in certificate.dtypes[0].findings if finding.check == "module"]
    assert sorted(named) == [name for name in load_adapter(folder).tensors if absent(name)]
    assert not certificate.passed


def test_a_head_that_is_adapted_is_looked_at_too(tmp_path: Path):
    base, folder = adapted(tmp_path, targets=("k_proj", "lm_head"))
    assert certify(base, folder, toy_prompts(), QUICK).failures == ()
    certificate = certify(base, _scaled(folder, lambda name: float(name != "lm_head")), toy_prompts(), QUICK)
    assert [finding.detail.split(":")[0] for finding in certificate.dtypes[0].findings] == ["lm_head"]


class Flattened(torch.nn.Sequential):
    """An MLP that gets the tokens of all rows in one dimension, as OPT's fc1 and the experts of a mixture do."""

    def forward(self, hidden_BTD):
        return super().forward(hidden_BTD.flatten(0, 1)).view_as(hidden_BTD)


@pytest.mark.parametrize("targets", [("k_proj",), ("k_proj", "fc1"), ("k_proj", "gate_proj")])
def test_a_module_whose_rows_cannot_be_told_apart_is_refused_by_name(targets, tmp_path: Path):
    base = opt_base() if "gate_proj" not in targets else toy_base("qwen3")
    if "gate_proj" in targets:
        base.model.model.layers[1].mlp = Flattened(base.model.model.layers[1].mlp)
    folder = write_adapter(base, tmp_path / "adapter", targets=targets)
    if len(targets) == 1:
        assert certify(base, folder, toy_prompts(), QUICK).failures == ()
        return
    with pytest.raises(AdapterError, match=rf"layers\.\d\.\S*{targets[-1]} on the tokens of all rows"):
        certify(base, folder, toy_prompts(), QUICK)


@pytest.mark.parametrize(("shift", "found"), [(-1, True), (0, True), (1, False)], ids=["early", "right", "late"])
def test_a_module_is_looked_at_where_it_must_begin(shift, found, tmp_path: Path):
    base = toy_base("qwen3")
    staged = stage(base, write_adapter(base, tmp_path / "adapter"), torch.float32)
    modules, active = adapted_modules(staged.models.alora), set()
    for call in staged.calls:
        with record_active(modules, call, active):
            capture(staged.models.alora, call, alora_offsets=call.offsets(shift))
    assert active == (set(modules) if found else set())


def test_a_control_that_is_not_caught_is_enough(tmp_path: Path, monkeypatch):
    base = toy_base("qwen3")
    honest = Control(
        "honest", (PREFIX,), lambda models, call: capture(models.alora, call, alora_offsets=call.offsets())
    )
    monkeypatch.setattr("alora.identity.controls.CONTROLS", (honest,))
    folder = write_adapter(base, tmp_path / "adapter")
    certificate = certify(base, folder, toy_prompts(), IdentitySettings(dtypes=["float32", "float32"]))
    assert not certificate.passed
    assert certificate.failures == ("float32: control not caught: honest",)  # and a dtype named twice is run once


def test_one_dtype_that_fails_is_enough(tmp_path: Path):
    """An adapter so faint that bfloat16 rounds it away."""
    base = toy_base("qwen3")
    folder = _scaled(write_adapter(base, tmp_path / "adapter"), lambda name: 1e-5)
    certificate = certify(
        base, folder, toy_prompts(), IdentitySettings(dtypes=["float32", "bfloat16"], negative_controls=False)
    )
    assert [record.passed for record in certificate.dtypes] == [True, False]
    assert not certificate.passed


def test_one_cached_prefix_of_several_that_changes_is_enough(tmp_path: Path):
    base, folder = adapted(tmp_path)

    def scribble(_module, _inputs, keywords):
        cache = keywords["past_key_values"]
        if cache.get_seq_length(1) == 17:
            cache.layers[1].values.view(torch.int32)[0, 0, 0, 0] ^= 1

    base.model.model.layers[1].self_attn.register_forward_pre_hook(scribble, with_kwargs=True)
    certificate = certify(base, folder, toy_prompts((17, 40)), QUICK)
    (record,) = certificate.dtypes
    assert record.findings == ()
    assert sorted(handover.passed for handover in record.handovers) == [False, True, True, True]
    assert not record.passed
    assert not certificate.passed


def test_a_run_by_pefts_search_that_differs_is_enough(tmp_path: Path, monkeypatch):
    """PEFT tells the right place, and starts one token after it."""
    base, folder = adapted(tmp_path)
    found = variants.calculate_alora_offsets
    monkeypatch.setattr(variants, "calculate_alora_offsets", lambda *a, **k: [one - 1 for one in found(*a, **k)])
    certificate = certify(base, folder, toy_prompts(), QUICK)
    findings = certificate.dtypes[0].findings
    assert {finding.check for finding in findings} == {"search"}
    assert len(findings) == len(certificate.lengths)
    assert not certificate.passed
