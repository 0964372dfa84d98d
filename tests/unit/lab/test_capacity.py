"""alora plan's arithmetic, compared with what the benchmarks measured and with cases small enough to do by hand."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from alora.cli import main
from alora.config.schema import TARGETS, PlanSettings
from alora.lab.bench.record import Record, load_record
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


def test_what_is_cached_is_not_computed_and_a_part_of_a_block_is_not_shared():
    whole, behind = BATTERY.alora(1600, 10), BATTERY.alora(1600, 10, cached=1600)
    assert behind.base == 0
    assert behind.adapted == whole.adapted
    odd = BATTERY.alora(1605, 10)
    assert odd.base - BATTERY.alora(1605, 1).base == 9 * (BATTERY.alora(1605, 1, cached=1600).base)
    linear = 2 * 36 * sum(i * o for i, o in SHAPES["qwen3_4b"].linears.values())
    assert BATTERY.alora(1, 1).base == linear + 2 * 2 * 36 * 32 * 128
    assert BATTERY.adapter_bytes(2) == 2 * 36 * 16 * sum(i + o for i, o in SHAPES["qwen3_4b"].linears.values())


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


def test_the_command_prints_every_assumption(capsys, tmp_path):
    record = RESULTS / "serving_cpu.json"
    asked = ["plan", "plan.device=cpu", "plan.shape=27m", "plan.policies=50", "plan.rate=0.1", "plan.target_ms=8000"]
    assert main([*asked, f"plan.record={record}", "plan.memory_gb=16", f"output={tmp_path / 'plan.json'}"]) == 0
    assert "fitted to serving_cpu.json" in capsys.readouterr().out
    assert json.loads((tmp_path / "plan.json").read_text())["plans"][0]["system"] == "alora"
    for wrong, code, named in (
        ([*asked, "plan.record=null"], 2, "a CPU"),
        ([*asked, f"plan.record={record}"], 2, "plan.memory_gb"),
        (["plan", "adapter.targets=[q_proj,x]"], 2, "adapter.targets"),
        (["plan", "plan.target_ms=1"], 1, "no number of devices"),
    ):
        assert main(wrong) == code
        assert named in capsys.readouterr().err


def test_a_base_by_its_config_alone(tmp_path, capsys, monkeypatch):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "tie_word_embeddings": True, **sizes}))
    assert main(["plan", f"base.source={tmp_path}", "json=true"]) == 0
    parameters = SHAPES["mini"].parameters
    assert f"{parameters / 1e6:.0f} M parameters" in json.loads(capsys.readouterr().out)["facts"]["base"]
    monkeypatch.setattr("alora.base.location.ensure_smollm2", lambda progress: tmp_path)
    assert main(["plan", "base=smollm2", "json=true"]) == 0, "a name of alora's own is none of the hub's"
    assert f"smollm2, {parameters / 1e6:.0f} M" in json.loads(capsys.readouterr().out)["facts"]["base"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **sizes, "head_dim": "x"}))
    assert main(["plan", f"base.source={tmp_path}"]) == 2
