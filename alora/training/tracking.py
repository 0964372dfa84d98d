"""A run's figures shown outside its folder: TensorBoard, Weights & Biases, MLflow, Trackio, or nowhere (the default).

``transformers``' own reporters do the work (``transformers.integrations``, what ``report_to`` names there). This module
gives them the run's id and folder, the recipe as the run's config, and names with policies in them. A reporter that
fails is dropped with one remark; the run itself never depends on it.
"""

import importlib
import importlib.util
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from alora.atomic import write_json
from alora.config.saved import forget_command_line
from alora.config.schema import Recipe, TrackingSettings
from alora.errors import MissingDependency, one_line

if TYPE_CHECKING:
    from alora.evaluation.records import Evaluation

_FOLDER, _RECORD = "tracking", "run.json"  # of the run folder


class Tracking:
    """Reports one run (use as a context manager); does nothing without a ``run_id``."""

    def __init__(self, recipe: Recipe, folder: Path, note: Callable[[str], None], run_id: str | None = None) -> None:
        self._settings, self._folder, self._note = recipe.tracking, folder, note
        self._begun, self._state, self._control = False, TrainerState(), TrainerControl()
        self._reporter: Any = None
        if run_id is not None:
            self._arguments = _arguments(recipe, run_id)
            if start := {"wandb": _open_wandb, "mlflow": _open_mlflow}.get(recipe.tracking.kind):
                start(recipe, folder, run_id)  # the callback takes a run that is open
            self._reporter = INTEGRATION_TO_CALLBACK[recipe.tracking.kind]()
            self._reporter.logging_dir = str(folder)  # TensorBoard's

    @property
    def active(self) -> bool:
        """Whether anything is reported."""
        return self._reporter is not None

    def callback(self, policies: Sequence[str], prefix: str = "") -> TrainerCallback:
        """The callback for a trainer of ``policies``; ``prefix`` opens every name, where each policy has its own
        steps."""
        return _TrainerReports(self, policies, self._settings.every, prefix)

    def begin(self, state: TrainerState, history: Sequence[tuple[Mapping[str, float], int]] = ()) -> None:
        """Open the reporter. A resumed run reports its checkpoint's ``history`` again: a killed process may have
        reported more than that, or not all of it."""
        if self._begun:
            return
        self._begun = True
        for file in self._folder.glob("events.out.tfevents.*") if history else ():  # TensorBoard reads all as one
            file.unlink()
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

    def evaluations(self, evaluations: Sequence["Evaluation"]) -> None:
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
            if event == "on_train_end" and self._settings.kind == "wandb":
                importlib.import_module("wandb").finish(**values)
            if event == "on_train_end" and self._settings.kind == "mlflow":
                importlib.import_module("mlflow").end_run("FAILED" if values["exit_code"] else "FINISHED")
        except Exception as error:
            self._reporter = None
            self._note(f"tracking stopped, the run goes on: {type(error).__name__}: {one_line(error)}")


class _TrainerReports(TrainerCallback):
    """Asks a trainer for a training loss every ``every`` optimiser steps, and passes on what it logs."""

    def __init__(self, tracking: Tracking, policies: Sequence[str], every: int, prefix: str) -> None:
        self._tracking, self._policies, self._every, self._prefix = tracking, policies, every, prefix

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

    def _named(self, logs: Mapping[str, object]) -> dict[str, float]:
        return metric_names(logs, self._policies, self._prefix)


def require_tracking(settings: TrackingSettings) -> None:
    """MissingDependency where the tracker's package is missing, before anything has been computed."""
    if settings.kind != "none" and importlib.util.find_spec(settings.kind) is None:
        raise MissingDependency(
            f"tracking={settings.kind} needs the package {settings.kind}; pip install {settings.kind}, or leave it out"
        )


def start_tracking(recipe: Recipe, run: Path, resumed: bool, note: Callable[[str], None]) -> Tracking:
    """Open the reporter that ``recipe`` asks for; a run that goes on keeps its id, a finished one is left alone.
    Everything lies below the ``tracking`` folder of ``run``. ``resumed``: the folder holds this very run already;
    otherwise what lies there belongs to another. ``note`` gets one line when the reporter cannot be opened."""
    kind = recipe.tracking.kind
    folder = run / _FOLDER / kind
    silent, record = Tracking(recipe, folder, note), folder / _RECORD
    if kind == "none":
        return silent
    try:
        goes_on = resumed and record.exists()
        known = json.loads(record.read_text(encoding="utf-8")) if goes_on else {"id": secrets.token_hex(4)}
        if known.get("finished"):
            return silent
        write_json(record, known)
        return Tracking(recipe, folder, note, known["id"])
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        offline = "; tracking.mode=offline records it here" if kind == "wandb" else ""
        note(f"tracking={kind} could not start, the run goes on without it: {reason}{offline}")
        return silent


def _arguments(recipe: Recipe, run_id: str) -> Any:
    """The part of a trainer's arguments that a reporter reads: names, and the run's config (the recipe)."""
    config = asdict(recipe)
    forget_command_line(config)
    return SimpleNamespace(
        run_name=f"{Path(recipe.run_dir).name}-{run_id}",  # Trackio knows runs by their names
        project=recipe.tracking.project,
        output_dir="",
        logging_steps=recipe.tracking.every,
        hub_private_repo=None,
        trackio_space_id=None,
        trackio_bucket_id=None,
        trackio_static_space_id=False,
        to_dict=lambda: config,
        to_json_string=lambda: json.dumps(config, indent=2),
    )


def _open_wandb(recipe: Recipe, folder: Path, run_id: str) -> None:
    wandb, settings = importlib.import_module("wandb"), recipe.tracking
    wandb.init(
        project=settings.project,
        entity=settings.entity,
        group=settings.group or recipe.name,
        name=Path(recipe.run_dir).name,
        tags=list(settings.tags),
        id=run_id,
        resume="allow",
        dir=str(folder.absolute()),
        mode=settings.mode,
        # The console shows verdicts on conversations, the command line may hold a secret, and the checkout is not ours
        # to upload.
        settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_meta=True),
    )


def _open_mlflow(recipe: Recipe, folder: Path, run_id: str) -> None:
    """Start the run, or go on in it, at ``MLFLOW_TRACKING_URI``."""
    mlflow, settings = importlib.import_module("mlflow"), recipe.tracking
    mlflow.set_experiment(settings.project)
    known = mlflow.search_runs(filter_string=f"tags.alora = '{run_id}'", output_format="list")
    tags = {"alora": run_id, "group": settings.group or recipe.name, **dict.fromkeys(settings.tags, "")}
    mlflow.start_run(known[0].info.run_id if known else None, run_name=Path(recipe.run_dir).name, tags=tags)


def metric_names(logs: Mapping[str, object], policies: Sequence[str], prefix: str = "") -> dict[str, float]:
    """A trainer's log entry with the ids of policies instead of their numbers: ``eval_loss_1`` → ``eval_loss/ID``. The
    only policy of a run has its total under its id, too. What is not a number is left out, and so is the summary that a
    trainer logs at its end (``train_loss``, ``train_runtime``)."""
    named: dict[str, float] = {}
    numbers = {f"loss_{index}": f"loss/{policy}" for index, policy in enumerate(policies)}
    for key, value in logs.items():
        if not isinstance(value, int | float) or not math.isfinite(value) or key.startswith("train_") or key == "step":
            continue
        phase, rest = ("eval_", key.removeprefix("eval_")) if key.startswith("eval_") else ("", key)
        alone = [f"loss/{policies[0]}"] if rest == "loss" and len(policies) == 1 else []
        named |= {f"{phase}{prefix}{name}": float(value) for name in (numbers.get(rest, rest), *alone)}
    return named
