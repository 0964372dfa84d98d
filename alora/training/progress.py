"""One bar for a training run, on standard error: steps, time left, latest losses."""

from typing import Any

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerControl, TrainerState


class TrainingBar(ProgressCallback):
    """``transformers.ProgressCallback`` with the latest losses behind the bar; that one prints every log entry."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Open the bar, at the step that a resumed run goes on from."""
        self.current_step = state.global_step
        if state.is_world_process_zero:
            self.training_bar = tqdm(total=state.max_steps, initial=state.global_step, desc="training", unit="step")

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        """Show the latest training and validation loss."""
        for key, name in (("loss", "loss"), ("eval_loss", "validation")):
            if logs and key in logs:
                self._shown[name] = float(logs[key])
        if self.training_bar is not None:
            self.training_bar.set_postfix(self._shown)
