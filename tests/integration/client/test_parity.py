"""Golden rows asked of an engine: near enough in the coarser dtype, and faults beyond that must be seen."""

from dataclasses import replace

import pytest
import torch

from alora.bundle.golden import TOLERANCES, tolerance
from alora.client.parity import OFF, PLAIN, parity


def stored_in(bundle, dtype):
    return replace(bundle, manifest=replace(bundle.manifest, base=replace(bundle.manifest.base, dtype=dtype)))


def engine(bundle, renderer, **shifts):
    """Answers the stored logits, the first label's moved by what the asked name says."""
    rows = {renderer.prefix(row.conversation): row.label_logits for row in bundle.golden}

    def ask(prefix, suffixes, names):
        (suffix,), (name,) = suffixes, names
        assert suffix == bundle.suffix
        shift = torch.tensor([shifts[str(name)], *[0.0] * (len(suffix.label_token_ids) - 1)], dtype=torch.float64)
        return [torch.tensor(rows[prefix], dtype=torch.float64) + 7 + shift]

    return ask


@pytest.mark.parametrize(
    ("dtype", "stored", "bound"),
    [
        ("float32", "float32", 1e-3),
        ("float32", "bfloat16", 0.25),
        ("bfloat16", "float32", 0.25),
        ("float16", "float64", 0.05),
    ],
)
def test_the_coarser_dtype_sets_the_tolerance(bundles, renderer, dtype, stored, bound):
    bundle = stored_in(bundles[0], stored)
    assert tolerance(dtype, stored) == bound
    for share, passed in ((0.5, True), (8, False)):
        ask = engine(bundle, renderer, honest=share * bound, off=40.0, **{"None": 40.0})
        record = parity(bundle, renderer, ask, dtype, "honest", {OFF: None, PLAIN: "off"})
        assert (record.passed, record.rows, record.tolerance) == (passed, 3, bound)
        assert 0 < record.difference < share * bound
        assert [control.caught for control in record.controls] == [True, True]


@pytest.mark.parametrize("unseen", ["None", "off"])
def test_a_control_that_is_not_seen_fails_the_parity(bundles, renderer, unseen):
    shifts = {"None": 40.0, "off": 40.0, "honest": 0.0, unseen: 0.5 * TOLERANCES["float32"]}
    record = parity(bundles[0], renderer, engine(bundles[0], renderer, **shifts), "float32", "honest", {
        OFF: None, PLAIN: "off"
    })  # fmt: skip
    assert not record.passed
    assert [control.caught for control in record.controls] == [unseen != "None", unseen != "off"]


def test_an_answer_that_is_no_number_fails(bundles, renderer):
    ask = engine(bundles[0], renderer, honest=float("nan"))
    record = parity(bundles[0], renderer, ask, "float32", "honest", {})
    assert (record.passed, record.difference) == (False, None)
