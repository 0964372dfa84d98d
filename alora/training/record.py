"""``training.json``: how one policy was trained, for whatever uses its adapter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from alora.errors import RunError
from alora.received import CHANGED, DAMAGED, decode, refused
from alora.text import read_json
from alora.training.track import Logits, Standing

_PUT_BACK = "put the run's own file back, name a bundle of the run alone, or remove the file and train again"


@dataclass(frozen=True)
class TrainingRecord:
    """One policy's part of a training; ``settings`` have nothing left open, ``losses`` are curves by step."""

    policy: str | None = None
    adapter_digest: str | None = None
    standing: Standing = field(default_factory=Standing)
    steps: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    losses: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    peak_bytes: int = 0
    out_of_fold: Logits | None = None
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def hyperparameters(self) -> dict[str, str]:
        """How the policy was trained, in words."""
        facts = {"steps": self.steps, "best_step": self.standing.best_step, **self.settings}
        return {name: str(value) for name, value in facts.items()}


def read_training(file: Path) -> TrainingRecord:
    """RunError where it cannot be read; a key that this version does not know is left alone."""
    content = read_json(file, RunError, _PUT_BACK)
    try:
        return decode(
            TrainingRecord, {item.name: content[item.name] for item in fields(TrainingRecord) if item.name in content}
        )
    except TypeError as error:
        raise refused(RunError, DAMAGED, f"{file} is damaged ({error}); {_PUT_BACK}") from error


def read_out_of_fold(file: Path) -> Logits:
    """The out-of-fold answers in a policy's ``training.json``; RunError where there are none."""
    answers = read_training(file).out_of_fold
    if answers is None:
        raise refused(RunError, DAMAGED, f"{file} has no out-of-fold answers; {_PUT_BACK}")
    return answers


def require_trained(file: Path, policy: str, adapter: str) -> None:
    """RunError unless ``file`` is of a policy, by its id, and of an adapter, by its digest."""
    record = read_training(file)
    for name, wanted in (("policy", policy), ("adapter_digest", adapter)):
        if (named := getattr(record, name)) != wanted:
            why = f"{file} has {name} {str(named)[:80]}, not {wanted}, which lies next to it; {_PUT_BACK}"
            raise refused(RunError, CHANGED, why)
