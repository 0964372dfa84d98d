"""``alora bench serving`` from the command line, on real vLLM at toy sizes.

In a process of its own: an engine that ends takes the process groups of all others of its process with it.
"""

import os
import subprocess
from pathlib import Path

import pytest

from alora.client.engine import block_size
from alora.lab.bench.record import load_record
from alora.lab.bench.trials import AA
from tests.forked import Forked
from tests.vllm import bundles

# Every system and workload; the ratios of such sizes mean nothing and none is asserted.
COMMAND = ["bench", "serving", "bench=quick", "bench.prefixes=[96]", "bench.seed=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    done = alora(*COMMAND, f"output={folder}")
    assert (folder / "bench.json").is_file(), done.stderr[-3000:]
    return done.returncode, load_record(folder), folder


def alora(*arguments):
    process = Forked(["-m", "alora", *arguments], os.environ)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def cell(record, workload, **at):
    found = [one for one in record.cells if one.workload == workload and at.items() <= one.at.items()]
    assert len(found) == 1, f"{workload} {at}: {len(found)} cells"
    return found[0]


def cached(one, system):
    """Tokens that its last run found in the cache."""
    return one.of(system)[-1].run.cached


def test_every_workload_and_system_was_run_on_one_engine(run):
    _, record, _ = run
    assert {one.workload for one in record.cells} == {"grid", "warm", "conversation"}
    assert {one.question for one in record.load} == {"rate", "population"}
    systems = {"lora", "alora", "base", "packed", AA} | ({"reader"} if "no reader" not in record.engine else set())
    assert set(cell(record, "grid", policies=4).systems) == systems
    assert record.engine["max_loras"] == "12"  # every compared adapter of both kinds has its own
    assert record.engine["max_num_batched_tokens"] == "512"
    assert {"block", "longest"} <= record.engine.keys()
    for found in record.cells:
        rounds = [[trial.round for trial in found.of(name)] for name in found.systems]
        assert rounds == [list(range(len(rounds[0])))] * len(rounds)  # each system once in each round
    assert all(one.ratio.coverage >= 0.99 for one in record.aa.values())


def test_the_engine_counts_what_each_system_computed(run):
    """96 tokens are three whole blocks: aLoRA computes them once, LoRA for each of four adapters."""
    _, record, _ = run
    grid = cell(record, "grid", policies=4)
    assert (grid.of("lora")[-1].run.computed, cached(grid, "lora")) == (4 * (96 + 12), 0)
    assert (grid.of("alora")[-1].run.computed, cached(grid, "alora")) == (96 + 4 * 12, 3 * 96)
    assert grid.ratio("lora").tokens == 3.0
    warm = cell(record, "warm", stage="warm")
    assert cached(warm, "alora") == 4 * 96  # the base has read it for all of them
    assert cached(warm, "lora") == 0  # and for none
    again = cell(record, "warm", stage="again")
    assert cached(again, "lora") == cached(again, "alora") == 4 * 96
    assert again.of("lora")[-1].run.pieces == 4
    turn = cell(record, "conversation", turn=2)
    assert turn.kept["lora"] == turn.kept["alora"] == 48
    assert cached(turn, "lora") == 4 * 32  # whole blocks of it
    assert cached(turn, "alora") > 4 * 32


def test_every_system_answers_as_its_reference_does(run):
    """Itself and the packed scorer do not count: both could be wrong alike."""
    _, record, _ = run
    for found in (one for one in record.cells if one.ours):
        against = {one.system for one in found.agreement if "PEFT" in one.against or one.against == "transformers"}
        assert against == set(found.systems)
        for one in found.agreement:
            assert one.checked > 0
            assert one.worst <= record.tolerance
            if one.moved is not None:  # adapters that did nothing would agree with anything
                assert one.moved > 3 * record.tolerance
    grid = cell(record, "grid", policies=4)
    assert {one.system for one in grid.agreement if one.against == "the packed scorer"} == {"alora", AA}


def test_a_population_beyond_the_slots_is_run_and_its_verdicts_compared_with_peft(run):
    _, record, _ = run
    beyond = {(one.system, one.population): one for one in record.load if one.question == "population"}
    assert beyond["alora", 100].distinct > beyond["alora", 100].slots == 12
    assert all(rate.ms for rate in beyond["alora", 100].rates)
    for one in record.load:
        if one.reason is None:
            assert one.agreement[0].checked >= 4
            assert one.refused == []


def test_a_guard_request_is_measured_next_to_requests_of_the_same_adapters(tmp_path):
    """On the server, with random bundles on a toy base: one answer a way, and each as PEFT says."""
    few = [
        "prefixes=[96]",
        "policies=[3]",
        "rounds=4",
        "serving.lora_tokens=null",
        "serving.systems=[lora,alora,packed]",
    ]
    script = Path(__file__).parents[2] / "benchmarks/guard_requests.py"
    command = [str(script), "bench=quick", f"base.source={bundles.base_folder()}", f"output={tmp_path}"]
    process = Forked([*command, *(f"bench.{one}" for one in few)], os.environ)
    _, errors = process.communicate()
    assert (tmp_path / "bench.json").is_file(), errors[-3000:]
    record = load_record(tmp_path)
    (found,) = record.cells
    assert (record.clock, record.base.name) == ("wall time", str(bundles.base_folder()))
    assert set(found.systems) == {"guard", "alora", "lora", AA}
    tokens = found.size("tokens")
    whole, suffix = tokens // block_size() * block_size(), found.of("lora")[0].run.computed // 3 - tokens
    for name, hit in (("guard", 2 * whole), ("alora", 2 * whole), ("lora", 0)):
        run = found.of(name)[-1].run
        assert (run.cached, run.computed) == (hit, 3 * (tokens + suffix) - hit)
        assert run.front > 0
    assert {one.against for one in found.agreement if one.system == "guard"} >= {"PEFT's aLoRA", "P requests", "guard"}
    assert all(one.checked > 0 and one.worst <= record.tolerance for one in found.agreement)
    assert {one.code for ratio in found.ratios for one in ratio.refused} <= {"BIASED_AA", "NOISY_AA"}
