"""TensorBoard event files, written by torch's own writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

if TYPE_CHECKING:
    from alora.tracking.track import History


class TensorBoardLog:
    """Scalars, tables and the config (as text in Markdown) and plots, in ``folder``."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder, self._config = folder, dict(config)
        self._open()

    def _open(self) -> None:
        self._writer = SummaryWriter(str(self._folder))
        lines = yaml.safe_dump(self._config, sort_keys=False, allow_unicode=True).splitlines()
        self._writer.add_text("config", "\n".join(f"    {line}" for line in lines))
        self._step = 0

    def go_on(self, history: History) -> None:
        """Write ``history`` anew, in place of the event files of the process that was killed."""
        self._writer.close()
        for file in self._folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._open()
        for step, values in history:
            self.metrics(values, step)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """One scalar each."""
        self._step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def table(self, name: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A Markdown table."""
        lines = [headings, ["---"] * len(headings), *rows]
        text = "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)
        self._writer.add_text(name, text, self._step)

    def image(self, name: str, pixels_HW3: NDArray[np.uint8]) -> None:
        """An image."""
        self._writer.add_image(name, pixels_HW3, self._step, dataformats="HWC")

    def close(self, failed: bool) -> None:
        """Flush the event file."""
        self._writer.close()


def _cell(value: object) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
