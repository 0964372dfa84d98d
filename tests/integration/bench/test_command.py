"""``alora bench training`` from the command line, at toy sizes."""

import json
from dataclasses import replace

import pytest
import torch

from alora.bench.shapes import SHAPES
from alora.bench.training import run_training
from alora.cli import main
from alora.config.schema import BenchSettings
from alora.config.validate import CHOICES


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    code = main(["bench", "training", "bench=quick", "bench.rounds=4", f"output={folder}"])
    results = json.loads((folder / "bench.json").read_text())
    return code, results, (folder / "bench.md").read_text()


def test_every_arm_is_measured_and_every_sample_kept(report):
    _, results, _ = report
    cell = results["cells"][0]
    arms = {"packed P=1", "packed P=3", "peft", "trainer", "trl"}
    assert set(cell["pairs"]) == arms
    counts = {arm: sum(sample["arm"] == arm for sample in cell["samples"]) for arm in arms}
    assert all(count >= 4 for count in counts.values())
    assert sum(sample["arm"] == "null" for sample in cell["samples"]) >= 8
    scored = {sample["arm"] for sample in results["scoring"]["samples"]}
    assert scored == {"packed N=2", "packed N=4", "lora"}


def test_a_base_in_four_bits():
    """TRL casts adapters of a 4-bit base to bfloat16, which the guard tells from rounding."""
    settings = BenchSettings(
        shape="mini", prefixes=[40], suffixes=[8], policies=[1], scoring_adapters=[], memory=False, rounds=2, rank=4
    )
    plain, packed = (
        run_training(replace(settings, baselines=names), torch.device("cpu"), torch.float32, False, quantized)
        for names, quantized in ((["peft"], False), (["peft", "trl"], True))
    )
    assert (plain["quantization"], packed["quantization"]) == ("none", "nf4")
    assert packed["base_mib"] < 0.6 * plain["base_mib"]  # the embedding, half of it here, is not packed
    worst = packed["cells"][0]["worst_difference"]
    assert worst["peft"] <= 1e-4 < worst["trl"]


def test_the_arms_agree_on_the_very_workload(report):
    _, results, _ = report
    worst = results["cells"][0]["worst_difference"]
    assert set(worst) == {"peft", "trainer", "trl"}
    assert all(value <= 1e-4 for value in worst.values())
    assert results["scoring"]["worst_difference"] <= 1e-4


def test_order_is_shuffled_and_interleaved(report):
    _, results, _ = report
    orders = {}
    for sample in results["cells"][0]["samples"]:
        orders.setdefault(sample["round"], []).append(sample["arm"])
    assert len({tuple(order) for order in orders.values()}) > 1
    assert all(set(order) == set(orders[0]) for order in orders.values())


def test_the_report_says_what_was_run(report):
    code, results, text = report
    assert results["environment"]["torch"] in text
    assert f"seed {results['settings']['seed']}" in text
    for baseline in results["settings"]["baselines"]:
        assert f"against {baseline}" in text
    assert code == int("## Withheld" in text)


def test_extrapolated_rows_are_marked(report):
    _, results, text = report
    marks = {entry["policies"]: entry["extrapolated"] for entry in results["scoring"]["ratios"]}
    assert marks == {2: False, 4: True}
    assert "(extrapolated)" in text


def test_every_shape_of_the_schema_exists():
    assert tuple(SHAPES) == CHOICES["bench.shape"]
    assert BenchSettings().shape in SHAPES


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("bench.policies=[]", "bench.policies"),
        ("bench.suffixes=[3]", "bench.suffixes"),
        ("bench.baselines=[unsloth]", "bench.baselines"),
        ("bench.scoring_adapters=[0]", "bench.scoring_adapters"),
        ("bench.shape=70b", "bench.shape"),
    ],
)
def test_impossible_settings_are_refused_before_anything_runs(override, part, capsys):
    assert main(["bench", "training", override]) == 2
    assert part in capsys.readouterr().err
