"""A bundle's threshold from vLLM's own logits: the same rows, the same target, and the bundle says who computed it."""

import json

import pytest

from alora.bundle.read import load_bundle
from tests.forked import run_forked
from tests.vllm import bundles as store


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Validation rows with labels that have nothing to do with the text: what is fitted is a threshold, not a skill."""
    file = tmp_path_factory.mktemp("rows") / "validation.jsonl"
    policy = store.POLICIES[0]
    lines = [
        {
            "messages": [{"role": "user", "content": f"Shall I take {number} of these, or {number * 7}?"}],
            "labels": {policy.id: policy.labels[number * number % 3 % 2]},
        }
        for number in range(12)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_vllm_fits_what_the_scorer_fits_and_is_named(rows, tmp_path):
    bundle = store.battery() / store.POLICIES[0].id
    points = {}
    for scorer in ("packed", "vllm"):
        code, output, errors = run_forked(
            *("recalibrate", f"artifact={bundle}", f"base.source={store.base_folder()}", f"data.validation={rows}"),
            *(f"scorer={scorer}", f"output={tmp_path / scorer}", "evaluation.bootstrap=20"),
            cache=tmp_path,
        )
        assert code == 0, output + errors
        points[scorer] = load_bundle(tmp_path / scorer).manifest.operating_point
    ours, theirs = points["packed"], points["vllm"]
    assert (ours.engine, theirs.engine) == ("packed", "vllm")
    assert theirs.temperature == pytest.approx(ours.temperature, rel=1e-2)
    assert theirs.threshold == pytest.approx(ours.threshold, abs=1e-3)
    assert (theirs.rows, theirs.positives) == (ours.rows, ours.positives) == (12, 4)
    assert load_bundle(bundle).manifest.operating_point.engine is None
