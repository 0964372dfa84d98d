"""Weights & Biases, online or offline. Imported when ``tracking=wandb`` asks for it, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import wandb
from numpy.typing import NDArray

from alora.config.schema import TrackingSettings

if TYPE_CHECKING:
    from alora.tracking.track import History

STEP = "step"
_ENVIRONMENT = {
    "WANDB_ERROR_REPORTING": "false",  # wandb's reports on its own crashes
    "WANDB_FINISH_TIMEOUT": "120",  # seconds; without it, a network that is lost holds the finished run for ever
    "WANDB_FINISH_TIMEOUT_RAISES": "true",
}


class WandbRun:
    """One run. Its x-axis is the optimiser step, so that a resumed run may write a step again."""

    def __init__(
        self,
        settings: TrackingSettings,
        folder: Path,
        run_id: str,
        name: str,
        group: str,
        config: Mapping[str, Any],
        note: Callable[[str], None],
    ) -> None:
        for variable, value in _ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        options: dict[str, Any] = {
            "project": settings.project,
            "entity": settings.entity,
            "group": group,
            "name": name,
            "tags": list(settings.tags),
            "id": run_id,
            "resume": "allow",
            "dir": str(folder),
            "config": dict(config),
            # The console shows verdicts on conversations, the command line may hold a secret, and the checkout is not
            # ours to upload.
            "settings": wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_meta=True
            ),
        }
        self._run = _init(settings.mode, options, folder, note)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        self._step = 0

    def go_on(self, history: History) -> None:
        """Add the steps of ``history`` that the run does not hold: offline, the file of a killed process lacks some."""
        known = self._run.summary.get(STEP) or 0
        for step, values in history:
            if step > known:
                self.metrics(values, step)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """One entry of history."""
        self._step = step
        self._run.log({STEP: step, **values})

    def table(self, name: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table of history."""
        self._run.log({STEP: self._step, name: wandb.Table(columns=list(headings), data=[list(row) for row in rows])})

    def image(self, name: str, pixels_HW3: NDArray[np.uint8]) -> None:
        """An image of history."""
        self._run.log({STEP: self._step, name: wandb.Image(pixels_HW3)})

    def close(self, failed: bool) -> None:
        """End the run; online, wait for what is still to be sent."""
        self._run.finish(exit_code=int(failed))


def _init(mode: str | None, options: dict[str, Any], folder: Path, note: Callable[[str], None]) -> Any:
    """The run; offline, with one remark, when it was to be online and cannot."""
    try:
        return wandb.init(mode=mode, **options)  # pyright: ignore[reportArgumentType]
    except Exception as error:
        if mode == "offline":
            raise
        why = " ".join(str(error).split())[:200]
        note(f"wandb cannot be reached ({why}); recording offline, send it later: wandb sync {folder}/wandb/offline-*")
        return wandb.init(mode="offline", **options)
