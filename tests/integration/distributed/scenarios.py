"""Small trainings whose outcome must not depend on the number of processes; run by one process or under torchrun."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from alora.adapter.folder import AdapterSpec, AdapterWeights, new_adapter
from alora.config.schema import TrainingSettings
from alora.training.examples import Example, Target
from alora.training.loop import Fitted, fit
from alora.training.processes import Processes, current_processes, is_sharded, join_processes, shard_layers
from tests.peft_reference import ALL_TARGETS
from tests.toy_models import as_base, toy_model

INVOCATION, LABELS, RARE = (5, 6, 7), (11, 12), 2
SETTINGS: dict[str, Any] = {"batch_size": 5, "learning_rate": 3e-3, "early_stopping_patience": 0}
SCENARIOS: dict[str, dict[str, Any]] = {
    "one policy": {"max_steps": 8},
    "a battery": {"max_steps": 8, "policies": 3, "max_suffix_tokens": 20},
    "accumulation, no cache": {
        "max_steps": 4,
        "policies": 3,
        "gradient_accumulation_steps": 2,
        "prefix_cache_bytes": 0,
    },
    "stopped early": {"epochs": 6, "policies": 2, "early_stopping_patience": 1, "learning_rate": 0.05},
    "a policy that diverges": {"max_steps": 4, "policies": 3, "sick": 1},
    "base in parts": {"max_steps": 6, "policies": 3, "max_suffix_tokens": 20, "shard_base": True},
    "base in parts, a policy diverges": {"max_steps": 3, "policies": 3, "sick": 1, "shard_base": True},
    "base in parts, checkpointing": {"max_steps": 3, "shard_base": True, "gradient_checkpointing": True},
}


def rows(count: int, policies: int, first: int = 0) -> list[Example]:
    """Ragged rows; the policy ``RARE`` has only each seventh of them, so that steps lack it on some processes."""
    made = []
    for number in range(first, first + count):
        generator = torch.Generator().manual_seed(number)
        prefix = tuple(torch.randint(20, 190, (3 + number % 9,), generator=generator).tolist())
        targets = [
            Target(policy, (*INVOCATION, *range(30 + policy, 33 + 2 * policy)), LABELS, (number >> policy) % 2)
            for policy in range(policies)
            if policy != RARE or number % 7 == 0
        ]
        made.append(Example(prefix, tuple(targets)))
    return made


def train(name: str, folder: Path) -> Fitted:
    """Run one scenario; every process of a training calls it."""
    settings = dict(SCENARIOS[name])
    policies, sick = settings.pop("policies", 1), settings.pop("sick", None)
    model = toy_model("qwen3", torch.float64)
    base = as_base(model)
    spec = AdapterSpec(4, 8.0, tuple(sorted(ALL_TARGETS)), INVOCATION)
    adapters = [new_adapter(spec, model, seed=place) for place in range(policies)]
    if sick is not None:
        tensors = {place: (a, b + float("inf")) for place, (a, b) in adapters[sick].tensors.items()}
        adapters[sick] = AdapterWeights(spec, tensors)
    count = current_processes().count
    if settings.get("shard_base") and count > 1:
        shard_layers(model, torch.device("cpu"), count)
        assert is_sharded(model)
    chosen = TrainingSettings(**(SETTINGS | settings))
    # 32 rows in batches of five: the last batch of an epoch is not whole
    return fit(base, adapters, rows(32, policies), rows(9, policies, 90), chosen, folder, progress=False)


def outcome(fitted: Fitted) -> dict[str, Any]:
    """What must be equal: where every policy stands, and (by their own file) its weights."""
    losses = [entry.get("loss", entry.get("eval_loss")) for entry in fitted.history if "train_runtime" not in entry]
    return {"standings": [asdict(standing) for standing in fitted.standings], "steps": fitted.steps, "losses": losses}


def weights(fitted: Fitted) -> torch.Tensor:
    """All finite adapters' numbers in one row."""
    kept = [
        adapter for adapter, standing in zip(fitted.adapters, fitted.standings, strict=True) if not standing.dropped
    ]
    return torch.cat([half.flatten() for one in kept for pair in one.tensors.values() for half in pair])


def main(names: list[str], folder: Path) -> None:
    """Run scenarios under a launcher and leave each process's outcomes in ``folder``."""
    processes = join_processes("cpu")
    for name in names:
        scenario = name.removesuffix(" unadded")
        if name != scenario:  # the negative control: gradients stay what each process computed
            Processes.add = lambda self, tensors: None  # type: ignore[method-assign]
        fitted = train(scenario, folder / "checkpoints" / name)
        torch.save(weights(fitted), folder / f"{name}.{processes.rank}.pt")
        (folder / f"{name}.{processes.rank}.json").write_text(json.dumps(outcome(fitted)))


if __name__ == "__main__":
    main(sys.argv[2:], Path(sys.argv[1]))
