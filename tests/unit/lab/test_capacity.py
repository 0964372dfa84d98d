"""alora plan's arithmetic, compared with what the benchmarks measured and with cases small enough to do by hand."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from alora.cli import main
from alora.config import schema
from alora.config.schema import TARGETS, PlanSettings
from alora.errors import ConfigError
from alora.lab.bench.open_loop import arrivals
from alora.lab.bench.record import Record, load_record
from alora.lab.bench.roofline import FORWARD
from alora.lab.bench.shapes import SHAPES
from alora.lab.capacity import (
    DEVICES,
    BatteryWork,
    Rates,
    battery_of,
    bursts,
    fit_rates,
    make_plan,
    published_rates,
    wait_p95,
)
from tests.memory import bounded_memory

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
BATTERY = BatteryWork(SHAPES["qwen3_4b"], 16, TARGETS, 32)
H100 = published_rates(DEVICES["h100"])


def ratio(record: Record, rates: Rates, tokens: int, policies: int) -> float:
    battery = battery_of(record)
    return battery.lora(tokens, policies).seconds(rates) / battery.alora(tokens, policies).seconds(rates)


def measured(systems: dict, record: Record, tokens: int, policies: int) -> float:
    """LoRA may have run a part of the burst, which stands for the whole."""
    work, seconds = systems["lora"]
    return seconds * policies / work.requests / systems["alora"][1]


@pytest.mark.parametrize("name", ["serving_cpu", "serving_gpu"])
def test_the_plan_says_what_was_measured_within_30_percent(name):
    record = load_record(RESULTS / f"{name}.json")
    rates, cells = fit_rates(record), bursts(record)
    assert len(cells) >= 4
    for tokens, policies, systems in cells:
        found = ratio(record, rates, tokens, policies)
        assert found == pytest.approx(measured(systems, record, tokens, policies), rel=0.3), (tokens, policies)


@pytest.mark.parametrize("name", ["serving_cpu", "serving_gpu"])
def test_a_cell_that_the_fit_has_not_seen_is_foretold(name):
    """But for one policy alone: nobody plans a fleet for it, and it is the one cell that says what a prefix costs."""
    record = load_record(RESULTS / f"{name}.json")
    for tokens, policies, systems in bursts(record):
        if policies == 1:
            continue
        others = [
            cell for cell in record.cells if (cell.at.get("tokens"), cell.at.get("policies")) != (tokens, policies)
        ]
        rates = fit_rates(replace(record, cells=others))
        found = ratio(record, rates, tokens, policies)
        assert found == pytest.approx(measured(systems, record, tokens, policies), rel=0.3), (tokens, policies)


def test_rates_that_were_put_in_come_out():
    record = load_record(RESULTS / "serving_cpu.json")
    true = Rates(2e-12, 5e-12, 0.003, 1e9)
    battery = battery_of(record)
    for cell in record.cells:
        for trial in cell.trials:
            if cell.workload == "grid" and trial.system in ("alora", "lora"):
                work = getattr(battery, trial.system)(cell.size("tokens"), trial.run.pieces)
                object.__setattr__(trial.run, "seconds", work.seconds(true))
    found = fit_rates(record)
    assert (found.base, found.adapted, found.request) == pytest.approx((2e-12, 5e-12, 0.003), rel=1e-6)


def test_a_record_without_such_bursts_is_refused():
    record = load_record(RESULTS / "serving_cpu.json")
    with pytest.raises(ConfigError, match="fewer than two cells"):
        fit_rates(replace(record, cells=[]))


def test_what_is_cached_is_not_computed_and_a_part_of_a_block_is_not_shared():
    whole, behind = BATTERY.alora(1600, 10), BATTERY.alora(1600, 10, cached=1600)
    assert behind.base == 0
    assert behind.adapted == whole.adapted
    odd = BATTERY.alora(1605, 10)
    assert odd.base - BATTERY.alora(1605, 1).base == 9 * (BATTERY.alora(1605, 1, cached=1600).base)
    linear = 2 * 36 * sum(i * o for i, o in SHAPES["qwen3_4b"].linears.values())
    assert BATTERY.alora(1, 1).base == linear + 2 * 2 * 36 * 32 * 128
    assert BATTERY.adapter_bytes(2) == 2 * 36 * 16 * sum(i + o for i, o in SHAPES["qwen3_4b"].linears.values())


def test_one_turn_at_little_load_waits_for_nobody():
    settings = PlanSettings(rate=0.001, turns=1, policies=10, tokens=1600)
    ours, theirs = make_plan(settings, BATTERY, H100, 80e9, 2)
    assert ours.gpus == theirs.gpus == 1
    assert ours.p95_s == ours.turn_s == pytest.approx(BATTERY.alora(1600, 10).seconds(H100))
    assert theirs.conversation_s == pytest.approx(BATTERY.lora(1600, 10).seconds(H100))


def test_devices_follow_load_memory_and_target():
    settings = PlanSettings(rate=10, target_ms=2000)
    (base, _) = make_plan(settings, BATTERY, H100, 80e9, 2)
    (double, _) = make_plan(replace(settings, rate=20), BATTERY, H100, 80e9, 2)
    assert base.gpus is not None
    assert double.gpus == pytest.approx(2 * base.gpus, abs=1)
    (small, _) = make_plan(replace(settings, gap_s=90), BATTERY, H100, 80e9, 2)  # live conversations fill the memory
    assert small.gpus is not None
    assert small.keeps_kv
    room = 0.9 * 80e9 - 2 * SHAPES["qwen3_4b"].parameters - 100 * BATTERY.adapter_bytes(2)
    assert small.gpus == math.ceil(small.kv_bytes / room) > base.gpus
    assert make_plan(replace(settings, target_ms=10), BATTERY, H100, 80e9, 2)[0].gpus is None
    assert make_plan(settings, BATTERY, H100, 8e9, 2)[0].gpus is None  # base and adapters do not fit
    long = replace(settings, tokens=100_000, rate=0.001, turns=1, target_ms=3.6e6, policies=10)
    assert [plan.gpus for plan in make_plan(long, BATTERY, H100, 24e9, 2)] == [None, None]  # 13.7 GiB of KV alone
    assert [plan.gpus for plan in make_plan(long, BATTERY, H100, 48e9, 2)] != [None, None]


@pytest.mark.parametrize("target_ms", [300, 500, 900])
def test_devices_are_the_fewest_that_meet_the_target(target_ms):
    settings = PlanSettings(rate=1000, policies=20, tokens=6000, turns=1, gap_s=0, target_ms=target_ms)
    plan = make_plan(settings, BATTERY, H100, 80e9, 2)[0]
    least = math.ceil(1000 * plan.turn_s / 0.8)
    meet = (n for n in range(least, 9999) if wait_p95(1000 / n, [plan.turn_s]) + plan.turn_s <= target_ms / 1000)
    assert plan.gpus == next(meet, None)


@pytest.mark.parametrize("policies", [1, 10, 100])
@pytest.mark.parametrize("gap_s", [30.0, 300.0, 3600.0])
def test_either_system_may_compute_again_what_would_fill_the_memory(policies, gap_s):
    """One policy alone is the same work for both; of more, aLoRA computes the prefix once."""
    settings = PlanSettings(rate=10, target_ms=2000, policies=policies, gap_s=gap_s)
    ours, theirs = make_plan(settings, BATTERY, H100, 80e9, 2)
    assert ours.gpus is not None
    assert ours.gpus <= (theirs.gpus or math.inf)
    assert gap_s == 30 or not ours.keeps_kv
    if policies == 1:
        assert (ours.gpus, ours.keeps_kv) == (theirs.gpus, theirs.keeps_kv)


def test_each_policy_of_standard_lora_keeps_a_kv_of_its_own():
    settings = PlanSettings(rate=0.01, policies=10, tokens=4000, turns=4, gap_s=1, target_ms=9e4)
    ours, theirs = make_plan(settings, BATTERY, H100, 80e9, 2)
    assert ours.keeps_kv
    assert theirs.keeps_kv
    one, gaps = SHAPES["qwen3_4b"].kv_bytes(2) * 4000, 3 * 1
    assert ours.kv_bytes == pytest.approx(one * 0.01 * (ours.conversation_s + gaps))
    assert theirs.kv_bytes == pytest.approx(10 * one * 0.01 * (theirs.conversation_s + gaps))


def test_the_way_that_meets_the_target_is_taken():
    """Computed anew, the last turn alone takes longer than is allowed, however few devices that seems to need."""
    settings = PlanSettings(policies=10, tokens=8000, target_ms=1500)
    theirs = make_plan(settings, BATTERY, H100, 80e9, 2)[1]
    assert theirs.keeps_kv
    assert theirs.gpus
    assert theirs.turn_s < 1.5 < BATTERY.lora(8000, 10).seconds(H100)


def test_a_turn_reads_the_weights_once():
    slow = replace(H100, bandwidth=1e9)
    weights = 2 * SHAPES["qwen3_4b"].parameters
    for plan in make_plan(PlanSettings(policies=1, tokens=100, target_ms=9e4), BATTERY, slow, 80e9, 2):
        assert plan.turn_s == weights / 1e9


def test_attention_behind_a_kept_prefix_is_not_computed_again():
    """Each token meets itself and those before it; of 1,000 the last 200 are computed."""
    kept, whole = 800 - 800 % BATTERY.block, 968 + 32
    met = sum(range(kept + 1, whole + 1))
    assert BATTERY.lora(968, 1, cached=800).adapted == pytest.approx(
        (whole - kept) * (BATTERY.linear + BATTERY.adapter) + BATTERY.attention(met, FORWARD), rel=1e-9
    )


def test_the_wait_is_that_of_a_queue():
    """Against a simulation of one server with turns of unequal length."""
    turns, busy = (0.1, 0.2, 0.3), 0.7
    rate = busy / sum(turns)
    draw, free, now, waits = random.Random(0), 0.0, 0.0, []
    for _ in range(200_000):
        now += draw.expovariate(rate * len(turns))
        waits.append(max(0.0, free - now))
        free = max(free, now) + draw.choice(turns)
    assert wait_p95(rate, turns) == pytest.approx(sorted(waits)[190_000], rel=0.1)


def test_p95_is_what_the_open_loop_measured_within_30_percent():
    """Rates from one record, p95 of another, whose own 30 arrivals are served in their order here."""
    measured = load_record(RESULTS / "serving_cpu_open_loop.json")
    rates, battery = fit_rates(load_record(RESULTS / "serving_cpu.json")), battery_of(measured)
    count, tokens, seed = (
        int(measured.settings[key]) for key in ("serving.conversations", "serving.load_tokens", "seed")
    )
    checked = []
    for load, rate in [(one, rate) for one in measured.load for rate in one.rates if rate.rate]:
        if load.system not in ("alora", "lora"):
            continue
        coming = arrivals(count, rate.rate, load.population, seed)
        turns = [getattr(battery, load.system)(tokens, len(one.policies)).seconds(rates) for one in coming]
        if rate.rate * sum(turns) / count > 0.8:  # no device is planned to be busier
            continue
        free, latencies = 0.0, []
        for one, turn in zip(coming, turns, strict=True):
            free = max(free, one.at) + turn
            latencies.append(free - one.at)
        p95 = sorted(latencies)[round(0.95 * (count - 1))]
        checked.append(load.system)
        assert 1000 * p95 == pytest.approx(rate.percentile(95), rel=0.3), (load.system, rate.rate)
        assert sum(turns) / count < 0.7 * p95  # the wait counts
    assert (checked.count("alora"), checked.count("lora")) == (9, 9)


def test_the_share_from_the_cache_is_what_engines_counted_within_30_percent():
    """docs/scale_out.md, *Where it runs*: 300 conversations of 4 turns, 2 policies, by three servers' counters."""
    asked, counted = 357_324, 116_428  # tokens, and those of them that were computed
    battery = replace(BATTERY, suffix=11, block=32)
    settings = PlanSettings(tokens=221, turns=4, policies=2)
    assert 300 * 2 * sum(round(221 * turn / 4) + 11 for turn in range(1, 5)) == pytest.approx(asked, rel=0.01)
    (ours, theirs) = make_plan(settings, battery, H100, 80e9, 2)
    assert ours.cached_share == pytest.approx(1 - counted / asked, rel=0.1)
    assert ours.cached_share > theirs.cached_share


def test_a_turn_computes_the_last_block_of_the_one_before_again():
    battery = replace(BATTERY, block=32)
    for count in (battery.alora, battery.lora):
        assert count(226, 2, cached=170) == count(226, 2, cached=160)
    assert battery.alora(226, 2, cached=170).tokens == (226 - 160) + 226 % 32 + 2 * 32
    assert battery.lora(226, 2, cached=170).tokens == 2 * (226 + 32 - 160)


def test_the_command_prints_every_assumption(capsys, tmp_path):
    record = RESULTS / "serving_cpu.json"
    asked = ["plan", "plan.device=cpu", "plan.shape=27m", "plan.policies=50", "plan.rate=0.1", "plan.target_ms=8000"]
    assert main([*asked, f"plan.record={record}", "plan.memory_gb=16", f"output={tmp_path / 'plan.json'}"]) == 0
    said = capsys.readouterr().out
    for word in (
        "50 policies",
        "0.1 conversations a second",
        "fitted to serving_cpu.json",
        "16 GB",
        "M/G/1",
        "30 s apart",
    ):
        assert word in said
    assert json.loads((tmp_path / "plan.json").read_text())["plans"][0]["system"] == "alora"
    assert main([*asked, "plan.record=null"]) == 2
    assert "nobody publishes what a CPU does" in capsys.readouterr().err
    assert main([*asked, f"plan.record={record}"]) == 2
    assert "plan.memory_gb" in capsys.readouterr().err
    assert main(["plan", "adapter.targets=[q_proj,x]"]) == 2
    assert "adapter.targets: x is none of q_proj, " in capsys.readouterr().err
    assert main(["plan", "plan.target_ms=1"]) == 1
    assert "no number of devices meets" in capsys.readouterr().err


def test_the_command_compares_whole_conversations_and_counts_a_cpus_bytes(capsys, tmp_path):
    """A CPU computes in float32 unless told otherwise; the last turn alone is another ratio."""
    cpu = ["plan", "plan.device=cpu", "plan.shape=27m", "plan.rate=0.1", "plan.target_ms=8000"]
    cpu += [f"plan.record={RESULTS / 'serving_cpu.json'}", "plan.policies=10", "plan.memory_gb=16"]
    for dtype, size in (("auto", 4), ("float32", 4), ("bfloat16", 2)):
        assert main([*cpu, f"base.dtype={dtype}", f"output={tmp_path / dtype}.json"]) == 0
        ours, theirs = json.loads((tmp_path / f"{dtype}.json").read_text())["plans"]
        said, ratio = capsys.readouterr().out, theirs["conversation_s"] / ours["conversation_s"]
        assert f"standard LoRA uses {ratio:.1f} times the device time of aLoRA" in said
        assert f"{ratio:.1f}" != f"{theirs['turn_s'] / ours['turn_s']:.1f}"
        assert f"M parameters, {size * SHAPES['27m'].parameters / 2**30:.2f} GiB" in said


@pytest.mark.parametrize(
    ("setting", "words"),
    [("plan.record=/dev/zero", "longer than 16 MiB"), ("plan.turns=1000000000", "plan.turns")],
)
def test_no_setting_takes_all_memory(setting, words, capsys):
    with bounded_memory():
        assert main(["plan", setting]) == 2
    assert words in capsys.readouterr().err


def test_a_base_by_its_config_alone(tmp_path, capsys, monkeypatch):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "tie_word_embeddings": True, **sizes}))
    assert main(["plan", f"base.source={tmp_path}", "json=true"]) == 0
    parameters = SHAPES["mini"].parameters
    assert f"{parameters / 1e6:.0f} M parameters" in json.loads(capsys.readouterr().out)["facts"]["base"]
    monkeypatch.setattr("alora.base.smollm2.ensure_smollm2", lambda progress: tmp_path)
    assert main(["plan", "base=smollm2", "json=true"]) == 0, "a name of alora's own is none of the hub's"
    assert f"smollm2, {parameters / 1e6:.0f} M" in json.loads(capsys.readouterr().out)["facts"]["base"]
    odd = [{"head_dim": "x"}, {"torch_dtype": []}, {"layer_types": -1}]
    for content in ("{", *(json.dumps({"model_type": "qwen3", **sizes, **one}) for one in odd)):
        (tmp_path / "config.json").write_text(content)
        assert main(["plan", f"base.source={tmp_path}"]) == 2, content
        assert "its config cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("tied", [True, False])
def test_all_of_a_bases_parameters_are_counted(tied, tmp_path, capsys):
    """Qwen3-8B: 8.19 billion, of which 0.62 are a head of its own."""
    sizes = {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": tied}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **sizes}))
    assert main(["plan", f"base.source={tmp_path}", "plan.device=h100", "json=true"]) == 0
    said = json.loads(capsys.readouterr().out)["facts"]["base"]
    assert ("7568 M parameters" if tied else "8190 M parameters, 15.26 GiB") in said


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral", "lfm2"])
def test_a_base_that_the_plan_has_no_count_for_is_refused(kind, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert main(["plan", f"base.source={tmp_path}", "plan.device=h100"]) == 2
    assert "a mixture of experts, or of another build, has no plan yet" in capsys.readouterr().err


def test_every_device_of_the_schema_is_in_the_table():
    assert {*DEVICES, "cpu"} == set(schema.DEVICES)
