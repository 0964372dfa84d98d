"""One bar for a training run, on standard error: steps, time left, latest losses."""

from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class TrainingBar(TrainerCallback):
    """In place of ``transformers.ProgressCallback``, which prints every log entry to standard output."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None
        self._shown: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, at the step that a resumed run goes on from."""
        if state.is_world_process_zero:
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count an optimiser step."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Show the latest training and validation loss."""
        for key, name in (("loss", "loss"), ("eval_loss", "validation")):
            if logs and key in logs:
                self._shown[name] = float(logs[key])
        if self._bar is not None:
            self._bar.set_postfix(self._shown)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
