"""``alora plan plan.rate=20 plan.device=h100``: devices, memory, latency and cost of a fleet, with every assumption."""

from dataclasses import asdict, replace
from pathlib import Path

from alora.atomic import write_json
from alora.base.config import read_config
from alora.base.load import load_skeleton
from alora.base.location import base_location
from alora.commands.output import report_file, say, say_json, table
from alora.config.schema import ALL_LINEAR, BaseSettings, Recipe
from alora.errors import BaseError, ConfigError, first_line
from alora.lab import capacity
from alora.lab.bench.record import load_record
from alora.lab.bench.shapes import SHAPES, BaseShape, shape_of
from alora.text import note

_OTHER = 0.05  # share of the parameters that the layers' sizes may leave out: norms, biases, a tower for images
_ITEM_BYTES = {"auto": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def run(recipe: Recipe) -> int:
    """1 where no number of devices meets the latency target."""
    settings = recipe.plan
    file = None if recipe.output is None else report_file(recipe.output)
    name, shape = _shape(recipe.base, settings.shape)
    if ALL_LINEAR in recipe.adapter.targets:
        recipe = replace(recipe, adapter=replace(recipe.adapter, targets=list(shape.linears)))
    if unknown := sorted(set(recipe.adapter.targets) - set(shape.linears)):
        raise ConfigError(f"adapter.targets: {', '.join(unknown)} is none of {', '.join(shape.linears)}")
    battery = capacity.BatteryWork(shape, recipe.adapter.rank, recipe.adapter.targets, settings.suffix)
    rates, memory, where = _machine(recipe)
    itemsize = _ITEM_BYTES[recipe.base.dtype] if (settings.device, recipe.base.dtype) != ("cpu", "auto") else 4
    plans = capacity.make_plan(settings, battery, rates, memory, itemsize)
    weights = shape.parameters * itemsize
    adapters = settings.policies * battery.adapter_bytes(itemsize)
    facts = {
        "base": f"{name}, {shape.parameters / 1e6:.0f} M parameters, {_gib(weights)}",
        "slots": f"{settings.policies} (serving.max_loras), so that no step waits for an adapter",
        "adapters": f"{_gib(adapters)} on each device, and as much in host memory",
        "host memory": f"{_gib(weights + adapters)} a replica, while it loads",
    }
    assumed = _assumptions(recipe, rates, memory, where, itemsize)
    found = {"plans": [asdict(plan) for plan in plans], "facts": facts, "assumptions": assumed}
    if file is not None:
        write_json(file, found)
    if recipe.json:
        say_json(found)
    else:
        _show(plans, facts, assumed)
    return int(plans[0].gpus is None)


def _shape(base: BaseSettings, shape: str) -> tuple[str, BaseShape]:
    """The base's sizes, from its config alone."""
    if base.source is None:
        return shape, SHAPES[shape]
    try:
        options = {"revision": base.revision, "trust_remote_code": base.trust_remote_code}
        config = read_config(base_location(base), options)
        found = shape_of(config.get_text_config())
    except Exception as error:  # transformers checks a config by errors of its own
        raise BaseError(
            f"{base.source}: its config cannot be read ({first_line(error)}); give base.source=FOLDER, or plan.shape="
        ) from error
    stored = sum(parameter.numel() for parameter in load_skeleton(base).parameters())
    if abs(stored - found.parameters) > _OTHER * stored:
        raise BaseError(
            f"{base.source} has {stored / 1e6:.0f} M parameters, and layers as alora plan counts them (queries, keys, "
            f"values, output, and one gated MLP) have {found.parameters / 1e6:.0f} M: a mixture of experts, or of "
            "another build, has no plan yet; give a dense base of its size"
        )
    return base.source, found


def _machine(recipe: Recipe) -> tuple[capacity.Rates, float, str]:
    settings = recipe.plan
    device = capacity.DEVICES.get(settings.device)
    memory = device.memory if device and settings.memory_gb is None else 1e9 * (settings.memory_gb or 0)
    if settings.record is not None:
        record = load_record(Path(settings.record))
        if not memory:
            raise ConfigError("plan.device=cpu does not say how much memory there is for KV; add plan.memory_gb=N")
        where = f"fitted to {Path(settings.record).name} ({record.base.name} on {record.base.device})"
        return capacity.fit_rates(record), memory, where
    if device is None:
        raise ConfigError("nobody publishes what a CPU does: run alora bench serving, and add plan.record=bench.json")
    where = f"{capacity.EFFICIENCY:.0%} of the published peak and {capacity.REQUEST_S * 1e3:g} ms a request"
    return capacity.published_rates(device), memory, f"{where} (Qwen3-4B on one H100 had these)"


def _assumptions(recipe: Recipe, rates: capacity.Rates, memory: float, where: str, itemsize: int) -> list[str]:
    own = recipe.plan
    return [
        f"{own.device}: {where}",
        f"so {1e-12 / rates.base if rates.base else float('inf'):.3g} TFLOP/s for the base's tokens, "
        f"{1e-12 / rates.adapted if rates.adapted else float('inf'):.3g} for adapted ones, "
        f"{rates.request * 1e3:.3g} ms a request; a turn never takes less than reading the weights once",
        f"{own.policies} policies of rank {recipe.adapter.rank} on {', '.join(recipe.adapter.targets)}; suffixes of "
        f"{own.suffix} tokens",
        f"{own.rate:g} conversations a second begin, at random; each has {own.turns} turns, {own.gap_s:g} s apart, and "
        f"grows evenly to {own.tokens} tokens; every turn asks every policy",
        "a conversation comes back to its replica (affinity); each system keeps its KV until then (standard LoRA each "
        "policy's), or computes it again, whichever needs fewer devices",
        f"base, adapters and KV have {itemsize} bytes a number; host memory is that of weights and adapters alone, "
        "without the engine's own",
        "no device is spare: one that fails is missing until it is back",
        f"KV is shared in blocks of {capacity.BLOCK} tokens; {capacity.USABLE:.0%} of {memory / 1e9:g} GB hold "
        "weights, adapters and KV",
        f"a device is busy {capacity.BUSIEST:.0%} of its time at most, and serves turns in their order (M/G/1); that "
        "p95 was compared with a measurement of conversations of one turn on a CPU alone",
    ]


def _show(plans: list[capacity.FleetPlan], facts: dict[str, str], assumed: list[str]) -> None:
    headings = ("", "devices", "p95, ms", "last turn alone, ms", "a conversation, ms", "from the cache",
                "KV of live ones", "cost an hour")  # fmt: skip
    rows = []
    for plan in plans:
        name = plan.system if plan.keeps_kv else f"{plan.system}, KV not kept"
        p95 = None if plan.p95_s is None else round(1e3 * plan.p95_s, 1)
        times = (round(1e3 * plan.turn_s, 1), round(1e3 * plan.conversation_s, 1))
        rows.append([name, plan.gpus, p95, *times, f"{plan.cached_share:.1%}", _gib(plan.kv_bytes), plan.cost])
    table(headings, rows)
    ours, theirs = plans
    say(f"\nstandard LoRA uses {theirs.conversation_s / ours.conversation_s:.1f} times the device time of aLoRA")
    table(("", ""), list(facts.items()))
    say("\nassumptions")
    for line in assumed:
        say(f"- {line}")
    for plan in plans:
        if plan.gpus is None:
            note(
                f"no number of devices meets plan.target_ms for {plan.system}: one turn alone takes longer, or base, "
                "adapters and one conversation's KV do not fit; take a larger device, fewer tokens or fewer policies"
            )


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
