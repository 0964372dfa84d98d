"""What a trainer logs, handed to the tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from alora.tracking.track import Tracking, metric_names


class TrackingCallback(TrainerCallback):
    """Records the training loss every ``every`` optimiser steps, and each validation loss, policy by policy.

    ``prefix`` opens every name: for a run that trains one policy after the other, each with steps of its own.
    """

    def __init__(self, tracking: Tracking, policies: Sequence[str], every: int, prefix: str = "") -> None:
        self._tracking, self._policies, self._every, self._prefix = tracking, tuple(policies), every, prefix

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Hand over what a run that goes on has logged before: a killed tracker may not have written all of it."""
        history = [(int(entry["step"]), self._named(entry)) for entry in state.log_history if "step" in entry]
        if history:
            self._tracking.go_on(history)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask the trainer for a log entry at this step."""
        if self._tracking.active and state.global_step % self._every == 0:
            control.should_log = True

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Record a log entry."""
        if logs and state.is_world_process_zero:
            self._tracking.metrics(self._named(logs), state.global_step)

    def _named(self, logs: Mapping[str, Any]) -> dict[str, float]:
        named = metric_names(logs, self._policies)
        return {f"{self._prefix}{name}": value for name, value in named.items()}
