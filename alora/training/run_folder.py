"""A run folder: what one run was asked, and what it has made so far.

A folder holds one run (or one comparison) of one set of inputs: the same command goes on in it, another one is refused
with the folder to take instead. :mod:`alora.training.layout` names the paths. Each stage's output appears whole or not
at all, so "is it there" is "is it done".
"""

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from filelock import BaseFileLock

from alora.atomic import LOCK, alone_in, sweep, write_json
from alora.config.schema import Recipe
from alora.errors import RunError
from alora.training import layout
from alora.training.claim import RUN, Claim, plain, read_claim, settings_of_training


@dataclass(frozen=True)
class PolicyPaths:
    """Where one policy's outputs lie."""

    adapter: Path
    training: Path
    predictions: Path
    report: Path
    evaluation: Path
    identity: Path
    bundle: Path


class ClaimedFolder:
    """An output folder of one ``kind``, bound to one recipe and locked by one process at a time (a context manager).

    Args:
        recipe: its settings; ``run_dir`` is its place.
        writes: False for a process that only reads: it takes no lock.
    """

    kind: ClassVar[str]  # in its record
    outputs: ClassVar[Sequence[str]]  # the entries that hold what it made

    def __init__(self, recipe: Recipe, writes: bool = True) -> None:
        self.path = Path(recipe.run_dir)
        self._recipe, self.writes = recipe, writes
        self._lock: BaseFileLock | None = None
        if writes:
            self._hold()

    def _hold(self) -> None:
        try:
            self._made = not self.path.is_dir()  # what is a file there fails to become one
            if not self._made:
                layout.require_plain_run(self.path, RunError, self.outputs)
                read_claim(self.path, self.kind)
            self._lock = alone_in(self.path, "run_dir=")
        except OSError as error:
            raise RunError(
                f"run folder {self.path} cannot be written ({error.strerror}); set run_dir= elsewhere"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            if self._made and [item.name for item in self.path.iterdir()] == [LOCK]:  # it failed before it began
                (self.path / LOCK).unlink()
                self.path.rmdir()
        self._lock.release()

    @property
    def settings(self) -> Path:
        return self.path / layout.RUN_FILE

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that what it made depends on."""
        raise NotImplementedError

    def claim(self, inputs: Mapping[str, str]) -> bool:
        """Bind the folder to this recipe and these input digests; True when it already was (a resume)."""
        # Through JSON, as the record is: a tuple would differ from its list.
        claimed = Claim(self.kind, plain(self.fixed_settings()), dict(inputs))
        before = read_claim(self.path, self.kind)
        if before is not None:
            changed = before.changed(claimed)
            if not changed:
                return True
            if self._holds_outputs():
                more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
                raise RunError(
                    f"{self.path} holds a {self.kind.removeprefix('alora ')} with other settings: "
                    f"{'; '.join(changed[:5])}{more}. Add run_dir={self.path}-{claimed.digest[:6]} (or a name=), or "
                    "remove that folder"
                )
        write_json(self.path / layout.INPUTS_FILE, asdict(claimed))
        return False

    def _holds_outputs(self) -> bool:
        paths = [self.path / name for name in self.outputs]
        return any(path.is_file() or (path.is_dir() and any(path.iterdir())) for path in paths)


class RunFolder(ClaimedFolder):
    """The folder of one training run."""

    kind = RUN
    outputs = layout.OUTPUTS

    @property
    def checkpoints(self) -> Path:
        """What training goes on from."""
        return self.path / layout.CHECKPOINTS

    @property
    def battery(self) -> Path:
        """What is shipped."""
        return self.path / layout.BATTERY

    def paths(self, policy: str) -> PolicyPaths:
        home = self.path / layout.POLICIES / policy
        names = (layout.ADAPTER, layout.TRAINING, layout.PREDICTIONS, layout.REPORT, layout.EVALUATION, layout.IDENTITY)
        return PolicyPaths(*(home / name for name in names), bundle=self.battery / policy)

    def fixed_settings(self) -> dict[str, Any]:
        settings = asdict(self._recipe)
        sections = {key.partition(".")[0] for key in settings_of_training(settings)}
        return {name: value for name, value in settings.items() if name in sections}

    def claim(self, inputs: Mapping[str, str]) -> bool:
        """As :meth:`ClaimedFolder.claim`, without what a killed process was writing."""
        for home in (self.path, self.battery, *self.path.glob(f"{layout.POLICIES}/*")):
            sweep(home)
        return super().claim(inputs)


def remove_checkpoints(folder: Path) -> None:
    """Remove ``folder``, in which alora keeps nothing but checkpoints; a link is left alone."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)


def holds_finished(recipe: Recipe, inputs: Mapping[str, str], policies: Sequence[str]) -> bool:
    """Whether the run folder of ``recipe`` holds a bundle of every policy, from these settings and ``inputs``.

    ``inputs`` may leave out what cannot be had without loading the base.
    """
    run = RunFolder(recipe, writes=False)
    try:
        claim = read_claim(run.path, run.kind)
    except (RunError, OSError):
        return False
    if claim is None:
        return False
    asked = Claim(run.kind, plain(run.fixed_settings()), {**claim.inputs, **inputs})
    return not claim.changed(asked) and all((run.battery / name).exists() for name in ("battery.json", *policies))
