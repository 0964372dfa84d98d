"""``alora bench serving`` from the command line, on real vLLM at toy sizes.

In a process of its own: an engine that ends takes the process groups of all others of its process with it.
"""

import json
import subprocess
import sys

import pytest

from alora.bench.serving.engine import _prepared
from alora.bench.serving.plan import planned_tokens
from alora.config.schema import BenchSettings, ServingBenchSettings
from tests.vllm import bundles

# One arm of every kind, every workload; the ratios of such sizes mean nothing and none is asserted.
COMMAND = ["bench", "serving", "bench=quick_serving", "bench.serving.lengths=[96]", "bench.serving.probes=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    done = alora(*COMMAND, f"output={folder}")
    assert (folder / "bench.json").is_file(), done.stderr[-3000:]
    return done.returncode, json.loads((folder / "bench.json").read_text()), folder


def alora(*arguments):
    return subprocess.run([sys.executable, "-m", "alora", *arguments], capture_output=True, text=True, timeout=550)


def cell(results, workload, **at):
    found = [c for c in results["cells"] if c["workload"] == workload and at.items() <= c["at"].items()]
    assert len(found) == 1, f"{workload} {at}: {len(found)} cells"
    return found[0]


def test_every_workload_and_arm_was_run_on_one_engine(run):
    _, results, _ = run
    assert {c["workload"] for c in results["cells"]} == {"grid", "warm", "conversation", "pipeline"}
    assert {entry["kind"] for entry in results["open_loop"]} == {"rate", "population"}
    assert set(cell(results, "grid", adapters=4)["arms"]) == {"lora", "alora", "base", "packed", "null"}
    assert results["engine"]["slots"] == 8  # every compared adapter of both kinds has its own
    for found in results["cells"]:
        samples = {n: [s["round"] for s in found["samples"] if s["arm"] == n] for n in found["arms"]}
        assert len({tuple(rounds) for rounds in samples.values()}) == 1  # each arm once in each round
        assert len(samples["alora"]) >= 3
    for null in results["null"].values():
        assert null["coverage"] >= 0.99


def test_the_engine_counts_what_each_arm_computed(run):
    """96 tokens are three whole blocks: aLoRA computes them once, LoRA for each of four adapters."""
    _, results, _ = run
    arms = cell(results, "grid", adapters=4)["arms"]
    assert arms["lora"]["cached_tokens"] == 0
    assert arms["lora"]["computed_tokens"] == 4 * (96 + 12)
    assert arms["alora"]["computed_tokens"] == 96 + 4 * 12
    assert arms["alora"]["cached_tokens"] == 3 * 96
    warm = cell(results, "warm", stage="warm")["arms"]
    assert warm["alora"]["cached_tokens"] == 4 * 96  # the base has read it for all of them
    assert warm["lora"]["cached_tokens"] == 0  # and for none
    again = cell(results, "warm", stage="again")["arms"]
    assert again["lora"]["cached_tokens"] == again["alora"]["cached_tokens"] == 4 * 96
    turn = cell(results, "conversation", turn=2)["arms"]
    assert turn["lora"]["cached_tokens"] == turn["alora"]["cached_tokens"] - 2 * 64 == 3 * 64
    judged = cell(results, "pipeline", stage="adapter")["arms"]
    assert judged["alora"]["cached_tokens"] == 96
    assert judged["lora"]["cached_tokens"] == 0


def test_every_arm_answers_as_its_reference_does(run):
    _, results, _ = run
    entries = [entry for c in results["cells"] for entry in c["agreement"]]
    assert {entry["against"] for entry in entries} >= {
        "PEFT's aLoRA",
        "PEFT's LoRA",
        "transformers",
        "the packed scorer",
    }
    for entry in entries:
        assert entry["checked"] > 0
        assert entry["worst"] <= results["tolerance"]
        if entry["moved"] is not None:  # adapters that did nothing would agree with anything
            assert entry["moved"] > 3 * results["tolerance"]


def test_every_compared_arm_of_every_workload_met_its_own_reference(run):
    """Itself and the packed scorer do not count: both could be wrong alike."""
    _, results, _ = run
    seen = set()
    for found in results["cells"]:
        if found["agreement"]:
            against = {e["arm"] for e in found["agreement"] if "PEFT" in e["against"] or e["against"] == "transformers"}
            assert against == set(found["arms"])
            seen.add(found["workload"])
    assert seen == {"grid", "warm", "conversation", "pipeline"}


def test_the_run_says_what_it_took(run):
    _, results, _ = run
    assert results["spent"]["cpu_seconds"] > 0
    assert sum(s["wall_ms"] for c in results["cells"] for s in c["samples"]) / 1000 < results["spent"]["wall_seconds"]


def test_no_ratio_is_told_about_other_prompts(run):
    _, results, _ = run
    ratios = {entry["baseline"]: entry for entry in cell(results, "grid", adapters=4)["ratios"]}
    assert ratios["base"]["ratio"] is None
    assert "the prompts differ" in ratios["base"]["refused"][0]
    reasons = [reason for c in results["cells"] for entry in c["ratios"] for reason in entry["refused"]]
    assert all("the prompts differ" in reason or "null arm" in reason for reason in reasons)


def test_what_was_written_is_whole(run):
    code, results, folder = run
    withheld = [r for c in results["cells"] for e in c["ratios"] for r in e["refused"] if "prompts differ" not in r]
    assert code == int(bool(withheld))
    assert "## Verdict agreement" in (folder / "bench.md").read_text()
    page = (folder / "bench.html").read_text()
    assert page.count("data:image/png;base64,") == len(list(folder.glob("*.png"))) >= 4
    compared = alora("bench", "compare", str(folder), str(folder / "bench.json"))
    assert compared.returncode == 0
    assert "1.000" in compared.stdout


def test_the_bar_plans_about_what_is_computed(run):
    _, results, _ = run
    found = results["settings"]
    settings = BenchSettings(**found | {"serving": ServingBenchSettings(**found["serving"])})
    computed = sum(sample["computed"] for c in results["cells"] for sample in c["samples"])
    assert computed == pytest.approx(planned_tokens(settings), rel=0.3)


def test_a_population_beyond_the_slots_is_run_and_its_verdicts_held_to_peft(run):
    _, results, _ = run
    cliffs = {(e["arm"], e["population"]): e for e in results["open_loop"] if e["kind"] == "population"}
    assert {name for name, _ in cliffs} <= {"alora", "lora"}
    alora_beyond = cliffs["alora", 100]
    assert alora_beyond["distinct"] > alora_beyond["slots"] == 8
    assert alora_beyond["probe"]["complete"]
    for entry in results["open_loop"]:
        if entry["kind"] == "rate" or entry["probe"] is not None:
            assert entry["agreement"][0]["checked"] >= 4
            assert entry["refused"] == []


def test_only_targeted_modules_are_prepared_where_vllm_knows_its_own_packed_ones(monkeypatch):
    """Elsewhere LoRA would pay for zeros; a version that took q_proj for no part of qkv_proj would leave it out."""
    from vllm.engine.arg_utils import EngineArgs

    told = {"lora_target_modules": ["q_proj"]} if hasattr(EngineArgs, "lora_target_modules") else {}
    assert _prepared(("q_proj",)) == told
    monkeypatch.setattr(
        "vllm.lora.utils.is_in_target_modules", lambda name, targets, packed: name in targets, raising=False
    )
    assert _prepared(("q_proj",)) == {}


def test_real_bundles_are_what_is_served(tmp_path):
    """Two adapters of unequal rank and targets, from their own folders, on the base that they name."""
    folder = tmp_path / "out"
    few = ["workloads=[grid]", "lengths=[96]", "adapters=[2]", "arms=[lora,alora,packed]", "checked=2"]
    held = ["bench", "serving", "bench=quick_serving", f"bench.battery={bundles.battery()}"]
    held.append(f"base.source={bundles.base_folder()}")
    done = alora(*held, f"output={folder}", *(f"bench.serving.{one}" for one in few))
    assert (folder / "bench.json").is_file(), done.stderr[-3000:]
    results = json.loads((folder / "bench.json").read_text())
    assert results["adapter"]["count"] == 2
    assert results["base"]["name"] == str(bundles.battery())
    (found,) = results["cells"]
    for entry in found["agreement"]:
        assert entry["worst"] <= results["tolerance"]
        assert entry["checked"] > 0
    assert {e["against"] for e in found["agreement"]} >= {"PEFT's aLoRA", "PEFT's LoRA", "the packed scorer"}
    asked = alora(*held)
    assert asked.returncode == 2
    assert "holds 2 bundles, and the workloads ask for" in asked.stderr
