"""A run folder: what one run was asked, and what it has made so far.

:mod:`alora.layout` names the paths. Each stage's output appears whole or not at all, so "is it there" is "is it done".
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from filelock import BaseFileLock

from alora import layout
from alora.atomic import LOCK, alone_in, remove_own, strangers, sweep, write_json
from alora.config.schema import Recipe
from alora.errors import RunError
from alora.reading import lone_surrogate
from alora.training.claim import RUN, Claim, plain, read_claim, settings_of_training

ADAPTER_FILES = r"adapter_(?:config\.json|model\.safetensors)"
# The names that alora, transformers, PEFT and the tokenizers give the files of a checkpoint.
_OF_TOKENIZER = (
    r"(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|tekken|chat_template)\.json|vocab\.txt"
    r"|merges\.txt|(?:tokenizer|spiece|sentencepiece\.bpe)\.model|chat_template\.jinja"
)
CHECKPOINT = (
    r"checkpoint-\d+/(?:(?:model|best|adapter_model)\.safetensors"
    r"|(?:policies|complete|trainer_state|prefix_cache|adapter_config)\.json"
    rf"|(?:optimizer|scheduler|scaler)\.pt|rng_state(?:_\d+)?\.pth|training_args\.bin|README\.md|{_OF_TOKENIZER}"
    r"|\.[^/]+\.alora-part)"
)
_ONE = rf"(?:training|evaluation|identity)\.json|predictions\.parquet|report\.html|adapter/{ADAPTER_FILES}"
_BUNDLE = rf"(?:alora|identity)\.json|golden\.jsonl|README\.md|{ADAPTER_FILES}"
# All that a run of the policies ID ever makes and may remove again; the card of its checkpoints is TRL's.
_OWN = (
    rf"checkpoints/(?:{CHECKPOINT}|ID/(?:{CHECKPOINT}|README\.md))|report\.html|policies/ID/(?:{_ONE})"
    rf"|battery/(?:battery\.json|ID/(?:{_BUNDLE}))"
)
_OWN_OF_0_1 = rf"{_OWN}|{_ONE}|bundle/(?:{_BUNDLE})"  # there what was of one policy lay in the folder itself


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

    Raises:
        RunError: it cannot be written, another process holds it, or it belongs to something else.
    """

    kind: ClassVar[str]  # in its record
    outputs: ClassVar[Sequence[str]]  # the entries that hold what it made

    def __init__(self, recipe: Recipe, writes: bool = True) -> None:
        self.path = Path(recipe.run_dir)
        self._recipe, self.writes = recipe, writes
        self.claimed = ""  # the digest of the claim, once it is claimed
        self._lock: BaseFileLock | None = None
        if writes:
            self._hold()

    def _hold(self) -> None:
        if lone_surrogate(str(self.path)) is not None:  # safetensors would write there, and not read
            raise RunError(f"run folder {str(self.path)!a} has no name in UTF-8; set run_dir= elsewhere")
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
        """Bind the folder to this recipe and these input digests; True when it already was (a resume).

        Raises:
            RunError: the folder holds outputs of other settings or inputs, and ``force`` is not set.
        """
        # Through JSON, as the record is: a tuple would differ from its list.
        claimed = Claim(self.kind, plain(self.fixed_settings()), dict(inputs))
        before, self.claimed = read_claim(self.path, self.kind), claimed.digest
        changed = [] if before is None else before.changed(claimed)
        if before is not None and not changed and not self._is_of_0_1():
            self.claimed = before.digest  # which the records of its stages name
            return True
        paths = [self.path / name for name in self.outputs]
        made = any(path.is_file() or (path.is_dir() and any(path.iterdir())) for path in paths)
        if before is not None and not self._recipe.force and made:
            raise RunError(
                f"{self.path} holds a {self.kind.removeprefix('alora ')} with other settings: {'; '.join(changed[:5])}"
                f"{f' and {len(changed) - 5} more' if len(changed) > 5 else ''}. "
                "Choose another run_dir= (or name=), or start over with force=true"
            )
        self._clear(before)
        write_json(self.path / layout.INPUTS_FILE, asdict(claimed))
        return False

    def own(self, claim: Claim | None) -> re.Pattern[str]:
        """All that ``claim`` made and that may be removed again."""
        raise NotImplementedError

    def _clear(self, claim: Claim | None) -> None:
        """Remove what was made before, unless something else lies among it."""
        links = [name for name in self.outputs if layout.own_link(self.path / name) is not None]
        names = [name for name in self.outputs if name not in links]
        own = self.own(claim)
        pages = [self.path / layout.REPORT, *self.path.glob(f"{layout.POLICIES}/*/{layout.REPORT}")]
        strange = [str(page.relative_to(self.path)) for page in pages if page.is_file() and not _is_page(page)]
        if foreign := [*strangers(self.path, own, names), *strange]:
            raise RunError(
                f"{self.path / foreign[0]} is not a file of alora's, and lies where the run before is to be removed; "
                "move it away, or choose another run_dir="
            )
        remove_own(self.path, own, names)
        for name in links:
            (self.path / name).unlink()

    def _is_of_0_1(self) -> bool:
        return False


class RunFolder(ClaimedFolder):
    """The folder of one training run."""

    kind = RUN
    outputs = layout.OUTPUTS

    @property
    def checkpoints(self) -> Path:
        """What training goes on from."""
        return self.path / "checkpoints"

    @property
    def battery(self) -> Path:
        """What is shipped."""
        return self.path / layout.BATTERY

    def paths(self, policy: str) -> PolicyPaths:
        home = self.path / layout.POLICIES / policy
        names = (layout.ADAPTER, layout.TRAINING, layout.PREDICTIONS, layout.REPORT, layout.EVALUATION, layout.IDENTITY)
        return PolicyPaths(*(home / name for name in names), bundle=self.battery / policy)

    def own(self, claim: Claim | None) -> re.Pattern[str]:
        """The files of the policies that it was claimed for."""
        return _of_policies(_OWN_OF_0_1 if self._is_of_0_1() else _OWN, [] if claim is None else claim.policies)

    def fixed_settings(self) -> dict[str, Any]:
        settings = asdict(self._recipe)
        sections = {key.partition(".")[0] for key in settings_of_training(settings)}
        return {name: value for name, value in settings.items() if name in sections}

    def claim(self, inputs: Mapping[str, str]) -> bool:
        """As :meth:`ClaimedFolder.claim`; also refuses what version 0.1 made, unless ``force`` is set."""
        for home in (self.path, self.battery, *self.path.glob(f"{layout.POLICIES}/*")):
            sweep(home)  # what a killed process was writing
        if self._is_of_0_1() and not self._recipe.force:
            raise RunError(
                f"{self.path} is a run of alora 0.1, which kept one policy's outputs in the folder itself; the other "
                "verbs read it as it is. To train, choose another run_dir= (or name=), or start over with force=true"
            )
        return super().claim(inputs)

    def _is_of_0_1(self) -> bool:
        return (self.path / layout.TRAINING).exists() and not (self.path / layout.POLICIES).exists()


def remove_checkpoints(folder: Path, policies: Sequence[str] = (), card: bool = False) -> None:
    """Remove the checkpoints in ``folder``, those of ``policies`` in folders of their own, and TRL's ``card`` of them;
    and the folder, when nothing else lies there."""
    own = f"{CHECKPOINT}|README\\.md" if card else CHECKPOINT
    remove_own(folder, _of_policies(rf"{own}|ID/(?:{CHECKPOINT}|README\.md)", policies))


def _of_policies(pattern: str, policies: Sequence[str]) -> re.Pattern[str]:
    ids = "|".join(map(re.escape, policies)) or "(?!)"
    return re.compile(re.sub(r"\bID/", lambda _: f"(?:{ids})/", pattern))


def _is_page(file: Path) -> bool:
    with file.open("rb") as stream:
        return layout.PAGE_MARK.encode() in stream.read(100)


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
