"""One run's tracking: what is recorded, under which names, and what happens when the tracker fails."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from alora.atomic import write_json
from alora.config.schema import Recipe, TrackingSettings
from alora.config.secrets import without_secrets
from alora.errors import AloraError, MissingDependency, RunError
from alora.evaluation.calibration import positive_probability
from alora.evaluation.plots import calibration_figure, reliability_points, roc_figure, roc_points
from alora.evaluation.report import HEADINGS, Evaluation, table_rows
from alora.reading import require_plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from alora.evaluation.predict import Predictions

FOLDER = "tracking"  # of the run folder
_RECORD = "run.json"
History = Sequence[tuple[int, Mapping[str, float]]]  # steps with their metrics
_NEEDS = {"wandb": "wandb", "tensorboard": "tensorboard"}


class Backend(Protocol):
    """Where figures go. Any method may raise; :class:`Tracking` gives the backend up then."""

    def go_on(self, history: History) -> None:
        """A killed run goes on behind ``history``; what it recorded later is void, and some of it was never written."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Numbers at an optimiser step; ``/`` in a name makes groups."""

    def table(self, name: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table."""

    def image(self, name: str, pixels_HW3: NDArray[np.uint8]) -> None:
        """A plot."""

    def close(self, failed: bool) -> None:
        """Write out what is pending."""


class Tracking:
    """Records one run (use as a context manager); does nothing without a backend.

    Whatever the backend raises is told once and ends the recording, never the run.
    """

    def __init__(self, backend: Backend | None, record: Path | None, note: Callable[[str], None]) -> None:
        self._backend, self._record, self._note = backend, record, note
        self._step = 0

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._backend is not None

    def go_on(self, history: History) -> None:
        """A run that was killed goes on behind these metrics."""
        self._step = max((step for step, _ in history), default=0)
        self._try(lambda backend: backend.go_on(history))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers at an optimiser step."""
        self._step = max(self._step, step)
        if values:
            self._try(lambda backend: backend.metrics(values, step))

    def evaluations(self, evaluations: Sequence[Evaluation]) -> None:
        """Record the table of an evaluation, and each of its figures as a number."""
        found = {
            f"{item.split}/{figure}/{item.policy}/{item.method}": estimate.value
            for item in evaluations
            for figure, estimate in item.metrics.figures.items()
        }
        self.metrics({name: value for name, value in found.items() if value is not None}, self._step)
        self._try(lambda backend: backend.table("evaluation", HEADINGS, table_rows(evaluations)))

    def curves(self, method: str, predictions: Predictions, temperature: float) -> None:
        """Record one policy's ROC and calibration on held-out rows, as tables and, with matplotlib, as plots."""
        if not self.active:
            return
        name, positive_N = f"{predictions.policy.id}/{method}", predictions.positive_N
        probability_N = positive_probability(predictions.logits_NL, temperature)
        roc = list(zip(*(side.tolist() for side in roc_points(positive_N, probability_N)), strict=True))
        bins = list(zip(*(side.tolist() for side in reliability_points(positive_N, probability_N)), strict=True))
        self._try(lambda backend: backend.table(f"roc/{name}", ("false positive rate", "recall"), roc))
        self._try(lambda backend: backend.table(f"calibration/{name}", ("probability", "share of positives"), bins))
        if importlib.util.find_spec("matplotlib"):
            rows = {method: (positive_N, probability_N)}
            for kind, draw in (("roc", roc_figure), ("calibration", calibration_figure)):
                self._try(
                    lambda backend, kind=kind, draw=draw: backend.image(
                        f"{kind}_plot/{name}", _pixels(draw(rows, predictions.policy.id))
                    )
                )

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._try(lambda backend: backend.close(failed=kind is not None))
        if self.active and kind is None and self._record is not None:
            write_json(self._record, json.loads(self._record.read_text(encoding="utf-8")) | {"finished": True})
        self._backend = None

    def _try(self, act: Callable[[Backend], None]) -> None:
        if self._backend is None:
            return
        try:
            act(self._backend)
        except Exception as error:
            self._backend = None
            self._note(f"tracking stopped, the run goes on: {describe(error)}")


def require_tracking(settings: TrackingSettings) -> None:
    """Refuse a tracker whose package is missing, before anything has been computed.

    Raises:
        MissingDependency: the package is not installed.
    """
    package = _NEEDS.get(settings.kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingDependency(
            f"tracking={settings.kind} needs the package {package}; install alora-toolkit[tracking], or leave it out"
        )


def start_tracking(recipe: Recipe, run: Path, resumed: bool, note: Callable[[str], None]) -> Tracking:
    """Open the tracker that ``recipe`` asks for; a run that goes on keeps its id, a finished one is left alone.

    Args:
        recipe: its tracking settings, and all of it as the run's config.
        run: the run folder; everything lies below its ``tracking`` folder.
        resumed: the folder holds this very run already; otherwise what lies there belongs to another.
        note: receives one line when the tracker cannot be opened.
    """
    settings = recipe.tracking
    if settings.kind == "none" or os.environ.get("RANK", "0") != "0":  # of several processes the first records
        return Tracking(None, None, note)
    folder = run / FOLDER / settings.kind
    record = folder / _RECORD
    try:
        require_plain(folder, RunError, _RECORD)
        if not resumed:  # what lies here is another run's: W&B keeps a folder for each, TensorBoard reads all as one
            for file in folder.glob("events.out.tfevents.*"):
                file.unlink()
        known = {"id": secrets.token_hex(4)}
        if resumed and record.exists():
            known = json.loads(record.read_text(encoding="utf-8"))
        if known.get("finished"):
            return Tracking(None, None, note)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, known)
        return Tracking(_open(recipe, folder, str(known["id"]), note), record, note)
    except AloraError:
        raise
    except Exception as error:
        note(f"tracking={settings.kind} could not start, the run goes on without it: {describe(error)}")
        return Tracking(None, None, note)


def _open(recipe: Recipe, folder: Path, run_id: str, note: Callable[[str], None]) -> Backend:
    config = asdict(without_secrets(recipe))
    if recipe.tracking.kind == "tensorboard":
        from alora.tracking.tensorboard_log import TensorBoardLog

        return TensorBoardLog(folder, config)
    from alora.tracking.wandb_run import WandbRun

    name = Path(recipe.run_dir).name
    return WandbRun(recipe.tracking, folder, run_id, name, recipe.tracking.group or recipe.name, config, note)


def describe(error: BaseException) -> str:
    """One line on an exception of somebody else's."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    """A figure as an image ``[height, width, 3]``, drawn without ``pyplot`` and its global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def metric_names(logs: Mapping[str, object], policies: Sequence[str]) -> dict[str, float]:
    """A trainer's log entry under the names that are recorded.

    ``loss`` → ``train/loss``, ``eval_loss`` → ``validation/loss``, ``loss_1`` → ``train/loss/`` and the id of the
    second policy; the only policy of a run has its total under its id, too. What is not a number is left out, and so is
    the summary that a trainer logs at its end (``train_loss``, ``train_runtime``).
    """
    named: dict[str, float] = {}
    for key, value in logs.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            continue
        if key.startswith("train_") or key == "step":
            continue
        phase = "validation" if key.startswith("eval_") else "train"
        rest = key.removeprefix("eval_")
        kind, _, place = rest.rpartition("_")
        if kind == "loss" and place.isdigit() and int(place) < len(policies):
            named[f"{phase}/loss/{policies[int(place)]}"] = float(value)
            continue
        named[f"{phase}/{rest}"] = float(value)
        if rest == "loss" and len(policies) == 1:
            named[f"{phase}/loss/{policies[0]}"] = float(value)
    return named
