"""A run's figures shown outside its folder: TensorBoard, Weights & Biases, MLflow, Trackio, or nowhere (the default).

``transformers``' own reporters do the work (``transformers.integrations``, what ``report_to`` names there). This module
gives them the run's id and folder, the settings as the run's config, and names with policies in them. A reporter that
fails is dropped with one remark; the run itself never depends on it.
"""

import importlib.util
import json
import math
import os
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from alora.atomic import write_json
from alora.config.saved import forget_command_line
from alora.config.schema import Recipe, TrackingSettings
from alora.errors import MissingDependency, one_line
from alora.evaluation.records import Evaluation

FOLDER = "tracking"  # of the run folder
_RECORD = "run.json"
_WANDB_ENVIRONMENT = {
    "WANDB_ERROR_REPORTING": "false",  # wandb's reports on its own crashes
    "WANDB_FINISH_TIMEOUT": "120",  # seconds; without it, a network that is lost holds the finished run for ever
    "WANDB_FINISH_TIMEOUT_RAISES": "true",
}


class Tracking:
    """Reports one run (use as a context manager); does nothing without a reporter."""

    def __init__(self, recipe: Recipe, folder: Path, note: Callable[[str], None], run_id: str = "") -> None:
        self._reporter = _reporter(recipe, folder, run_id, note) if run_id else None
        self._recipe, self._folder, self._note, self._begun = recipe, folder, note, False
        self._state, self._control, self._arguments = TrainerState(), TrainerControl(), _Arguments(recipe, run_id)

    @property
    def active(self) -> bool:
        """Whether anything is reported."""
        return self._reporter is not None

    def callback(self, policies: Sequence[str], prefix: str = "") -> TrainerCallback:
        """The callback for a trainer of ``policies``; ``prefix`` opens every name, where each policy has its own
        steps."""
        return _TrainerReports(self, policies, self._recipe.tracking.every, prefix)

    def begin(self, state: TrainerState, history: Sequence[tuple[Mapping[str, float], int]] = ()) -> None:
        """Open the reporter. A resumed run reports its checkpoint's ``history`` again: a killed process may have
        reported more than that, or not all of it."""
        if self._begun:
            return
        self._begun = True
        if history:
            _remove_events(self._folder)
        self._state = state
        self._try("on_train_begin", model=None)
        for logs, step in history:
            self.log(logs, step)

    def log(self, logs: Mapping[str, float], step: int | None = None) -> None:
        """Report numbers at an optimiser step, by default the last one; ``eval_`` and ``test_`` open a name's group."""
        self.begin(self._state)
        if step is not None:
            self._state.global_step = step
        if logs:
            self._try("on_log", logs=dict(logs), model=None)

    def evaluations(self, evaluations: Sequence[Evaluation]) -> None:
        """Report every figure of every policy and method."""
        self.log(
            {
                f"{item.split.replace('validation', 'eval')}_{figure}/{item.policy}/{item.method}": estimate.value
                for item in evaluations
                for figure, estimate in item.metrics.figures.items()
                if estimate.value is not None
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.active:
            return
        self._try("on_train_end", exit_code=int(kind is not None))
        if self.active and kind is None:
            record = self._folder / _RECORD
            write_json(record, json.loads(record.read_text(encoding="utf-8")) | {"finished": True})
        self._reporter = None

    def _try(self, event: str, **values: Any) -> None:
        if self._reporter is None:
            return
        try:
            getattr(self._reporter, event)(self._arguments, self._state, self._control, **values)
            if event == "on_train_end" and (end := _ENDS.get(self._recipe.tracking.kind)):
                end(**values)
        except Exception as error:
            self._reporter = None
            self._note(f"tracking stopped, the run goes on: {type(error).__name__}: {one_line(error)}")


class _TrainerReports(TrainerCallback):
    """Asks a trainer for a training loss every ``every`` optimiser steps, and passes on what it logs."""

    def __init__(self, tracking: Tracking, policies: Sequence[str], every: int, prefix: str) -> None:
        self._tracking, self._every = tracking, every
        self._named = partial(metric_names, policies=tuple(policies), prefix=prefix)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Called by the trainer; its state holds the log of a run that goes on."""
        history = [(self._named(entry), int(entry["step"])) for entry in state.log_history if "step" in entry]
        self._tracking.begin(TrainerState(global_step=state.global_step), history)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._tracking.active and state.global_step % self._every == 0:
            control.should_log = True

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if logs and state.is_world_process_zero:
            self._tracking.log(self._named(logs), state.global_step)


class _Arguments:
    """The part of a trainer's arguments that a reporter reads: names, and the run's config (the recipe)."""

    hub_private_repo = trackio_space_id = trackio_bucket_id = None
    trackio_static_space_id = False

    def __init__(self, recipe: Recipe, run_id: str) -> None:
        self.run_name = f"{Path(recipe.run_dir).name}-{run_id}"  # Trackio knows runs by their names
        self.project, self.output_dir, self.logging_steps = recipe.tracking.project, "", recipe.tracking.every
        self._config = asdict(recipe)
        forget_command_line(self._config)

    def to_dict(self) -> dict[str, Any]:
        return self._config

    def to_json_string(self) -> str:
        return json.dumps(self._config, indent=2)


def require_tracking(settings: TrackingSettings) -> None:
    """MissingDependency where the tracker's package is missing, before anything has been computed."""
    if settings.kind != "none" and importlib.util.find_spec(settings.kind) is None:
        raise MissingDependency(
            f"tracking={settings.kind} needs the package {settings.kind}; pip install {settings.kind}, or leave it out"
        )


def start_tracking(recipe: Recipe, run: Path, resumed: bool, note: Callable[[str], None]) -> Tracking:
    """Open the reporter that ``recipe`` asks for; a run that goes on keeps its id, a finished one is left alone.

    Args:
        recipe: its tracking settings, and all of it as the run's config.
        run: the run folder; everything lies below its ``tracking`` folder.
        resumed: the folder holds this very run already; otherwise what lies there belongs to another.
        note: receives one line when the reporter cannot be opened.
    """
    kind = recipe.tracking.kind
    folder = run / FOLDER / kind
    silent = Tracking(recipe, folder, note)
    if kind == "none" or os.environ.get("RANK", "0") != "0":  # of several processes the first reports
        return silent
    record = folder / _RECORD
    try:
        if not resumed:  # what lies here is another run's: W&B keeps a folder for each, TensorBoard reads all as one
            _remove_events(folder)
        known = {"id": secrets.token_hex(4)}
        if resumed and record.exists():
            known = json.loads(record.read_text(encoding="utf-8"))
        if known.get("finished"):
            return silent
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, known)
        return Tracking(recipe, folder, note, str(known["id"]))
    except Exception as error:
        note(f"tracking={kind} could not start, the run goes on without it: {type(error).__name__}: {one_line(error)}")
        return silent


def _reporter(recipe: Recipe, folder: Path, run_id: str, note: Callable[[str], None]) -> TrainerCallback:
    kind = recipe.tracking.kind
    if kind in _OPENINGS:  # the callback takes a run that is open
        _OPENINGS[kind](recipe, folder, run_id, note)
    reporter = INTEGRATION_TO_CALLBACK[kind]()
    reporter.logging_dir = str(folder)  # TensorBoard's
    return reporter


def _remove_events(folder: Path) -> None:
    for file in folder.glob("events.out.tfevents.*"):
        file.unlink()


def _open_wandb(recipe: Recipe, folder: Path, run_id: str, note: Callable[[str], None]) -> None:
    """Start the run; offline, with one remark, when it was to be online and cannot."""
    for variable, value in _WANDB_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    wandb, settings = importlib.import_module("wandb"), recipe.tracking
    options: dict[str, Any] = {
        "project": settings.project,
        "entity": settings.entity,
        "group": settings.group or recipe.name,
        "name": Path(recipe.run_dir).name,
        "tags": list(settings.tags),
        "id": run_id,
        "resume": "allow",
        "dir": str(folder.absolute()),
        # The console shows verdicts on conversations, the command line may hold a secret, and the checkout is not ours
        # to upload.
        "settings": wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_meta=True),
    }
    try:
        wandb.init(mode=settings.mode, **options)
    except Exception as error:
        if settings.mode == "offline":
            raise
        why = f"wandb cannot be reached ({one_line(error)})"
        where = f"{shlex.quote(str(folder.absolute()))}/wandb/offline-*"
        note(f"{why}; recording offline, send it later: wandb sync {where}")
        wandb.teardown()  # what is left of the first try keeps the run's id
        wandb.init(mode="offline", **options)


def _open_mlflow(recipe: Recipe, folder: Path, run_id: str, note: Callable[[str], None]) -> None:
    """Start the run, or go on in it, at ``MLFLOW_TRACKING_URI``."""
    mlflow, settings = importlib.import_module("mlflow"), recipe.tracking
    mlflow.set_experiment(settings.project)
    known = mlflow.search_runs(filter_string=f"tags.alora = '{run_id}'", output_format="list")
    tags = {"alora": run_id, "group": settings.group or recipe.name, **dict.fromkeys(settings.tags, "")}
    mlflow.start_run(known[0].info.run_id if known else None, run_name=Path(recipe.run_dir).name, tags=tags)


_OPENINGS = {"wandb": _open_wandb, "mlflow": _open_mlflow}
_ENDS: dict[str, Callable[..., object]] = {
    "wandb": lambda exit_code: importlib.import_module("wandb").finish(exit_code=exit_code),
    "mlflow": lambda exit_code: importlib.import_module("mlflow").end_run("FAILED" if exit_code else "FINISHED"),
}


def metric_names(logs: Mapping[str, object], policies: Sequence[str], prefix: str = "") -> dict[str, float]:
    """A trainer's log entry with the ids of policies instead of their numbers: ``eval_loss_1`` → ``eval_loss/ID``.

    The only policy of a run has its total under its id, too. What is not a number is left out, and so is the summary
    that a trainer logs at its end (``train_loss``, ``train_runtime``).
    """
    named: dict[str, float] = {}
    for key, value in logs.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            continue
        if key.startswith("train_") or key == "step":
            continue
        phase, rest = ("eval_", key.removeprefix("eval_")) if key.startswith("eval_") else ("", key)
        numbers = {f"loss_{index}": f"loss/{policy}" for index, policy in enumerate(policies)}
        alone = [f"loss/{policies[0]}"] if rest == "loss" and len(policies) == 1 else []
        named |= {f"{phase}{prefix}{name}": float(value) for name in (numbers.get(rest, rest), *alone)}
    return named
