"""What ``alora train`` exports is what vLLM serves: same verdicts, and the same proof from vLLM's own cache."""

import json

import pytest

from tests.toy_recipe import run_alora, toy_overrides


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A toy run with its bundle, on a base whose heads are as wide as vLLM's CPU kernels need."""
    folder = tmp_path_factory.mktemp("bundle")
    code, _, errors = run_alora("train", *toy_overrides(folder, folder / "run", head_dim=32), cache=folder / "cache")
    assert code == 0, errors
    return folder


def _score(folder, text, engine):
    conversation = folder / "conversation.json"
    conversation.write_text(json.dumps({"messages": [{"role": "user", "content": text}]}))
    code, output, errors = run_alora(
        "score",
        f"artifact={folder / 'run'}",
        str(conversation),
        "json=true",
        f"engine={engine}",
        cache=folder / "cache",
    )
    assert code == 0, errors
    return json.loads(output)["verdicts"]


def test_the_same_verdict_from_both_engines(trained):
    for text in ("message 3 says red", "a long story about nothing that says blue in the end"):
        (ours,), (theirs,) = _score(trained, text, "transformers"), _score(trained, text, "vllm")
        assert ours["label"] == theirs["label"]
        assert ours["adapter_digest"] == theirs["adapter_digest"]
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-4)
        assert 0 < ours["probability"] < 1


def test_kv_identity_is_proven_in_vllms_cache(trained):
    report = trained / "vllm.json"
    code, output, errors = run_alora(
        "validate", f"artifact={trained / 'run/bundle'}", "engine=vllm", f"output={report}", cache=trained / "cache"
    )
    assert code == 0, output + errors
    certificate = json.loads(report.read_text())
    assert certificate["engine"].startswith("vllm ")
    (record,) = certificate["dtypes"]
    assert [control["name"] for control in record["controls"] if control["caught"]] == [
        "standard LoRA",
        "LoRA with B scaled by 1e-4",
        "activation one token early",
        "activation one token late",
        "one element changed by 1 ulp",
        "B = 0",
        "adapter silently off",
    ]
    assert all(layer["prefix_elements"] > 0 and layer["prefix_different"] == 0 for layer in record["layers"])
    assert "PEFT's search" not in output
