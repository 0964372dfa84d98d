"""A comparison's folder: what each unit scored, so that a comparison which was cut off goes on.

run.yaml            the recipe, reloadable
inputs.json         digests of rows, policies and base, and the settings that a score depends on
arms/UNIT/          POLICY.json with the scores; adapters/POLICY as PEFT folders, where the arm trains
compare.json        figures, tests and every raw score
compare.md          the tables
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alora.atomic import write_json
from alora.comparison.scores import Scores, read_scores, write_scores
from alora.comparison.task import Unit
from alora.config.schema import Recipe
from alora.errors import RunError
from alora.reading import require_plain
from alora.training.run_folder import ADAPTER, CHECKPOINT, hold_folder, read_claim, remove_outputs

ASK_AGAIN = "rows_to_ask_again"  # a fact of scores: rows that the next call may get an answer to
_INPUTS, _LEFT_OUT, _OPEN = "inputs.json", "left_out.json", "open"
_KIND = "alora comparison"
_OWN = re.compile(
    rf"arms/[^/]+/(?:[^/]+\.json|open|answers/[^/]+\.jsonl|adapters/[^/]+/{ADAPTER}|checkpoints/{CHECKPOINT}"
    r"|(?:[^/]+/)*\.[^/]+\.alora-part(?:/.+)?)"
)
# The settings that a score depends on; which arms, seeds and ranks are run may grow from call to call.
_FIXED = ("base", "adapter", "policy", "prompt", "training")


class ComparisonFolder:
    """One comparison's folder, held by one process at a time (use as a context manager).

    Raises:
        RunError: it cannot be written, another process holds it, or it holds something else.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.path = Path(recipe.run_dir)
        self._recipe = recipe
        if self.path.is_dir():
            require_plain(self.path, RunError, "run.yaml", _INPUTS, "arms")
            read_claim(self.path, _KIND)
        self._lock = hold_folder(self.path)

    def __enter__(self) -> ComparisonFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def settings(self) -> Path:
        """The reloadable recipe."""
        return self.path / "run.yaml"

    def claim(self, digests: Mapping[str, str]) -> bool:
        """Bind the folder to these rows and settings; True when it already was, and finished units are kept.

        Raises:
            RunError: it holds scores of other rows or settings, and ``force`` is not set.
        """
        claimed = {"kind": _KIND, "settings": self._fixed_settings(), "inputs": dict(digests)}
        before = read_claim(self.path, _KIND)
        if before == claimed:
            return True
        if before is not None and not self._recipe.force:
            parts = [
                f"{part}.{name}"
                for part in ("settings", "inputs")
                for name in _differing(before.get(part), claimed[part])
            ]
            raise RunError(
                f"{self.path} holds a comparison with other {', '.join(parts[:6]) or 'contents'}; choose another "
                "run_dir= (or name=), or start over with force=true"
            )
        remove_outputs(self.path, _OWN, ["arms"])
        write_json(self.path / _INPUTS, claimed)
        return False

    def home(self, unit: Unit) -> Path:
        """Where one unit's outputs lie."""
        return self.path / "arms" / unit.name

    def write(self, unit: Unit, found: Mapping[str, Scores], failed: Mapping[str, str]) -> None:
        """Keep what a unit scored; the list of what it could not comes last and marks the unit as finished, unless
        the next call may score more of its rows."""
        for policy, scores in found.items():
            write_scores(self.home(unit) / f"{policy}.json", scores)
        mark = self.home(unit) / _OPEN
        if any(scores.facts.get(ASK_AGAIN) for scores in found.values()):
            mark.touch()
            write_json(self.home(unit) / _LEFT_OUT, dict(failed))
        else:
            write_json(self.home(unit) / _LEFT_OUT, dict(failed))
            mark.unlink(missing_ok=True)

    def finished(self, unit: Unit) -> bool:
        """Whether the unit has run to its end and left no row to be asked about again."""
        return (self.home(unit) / _LEFT_OUT).is_file() and not (self.home(unit) / _OPEN).exists()

    def read(self, unit: Unit) -> tuple[list[Scores], dict[str, str]]:
        """What a unit scored, and per missing policy the reason.

        Raises:
            RunError: its files are damaged.
        """
        home = self.home(unit)
        try:
            failed = json.loads((home / _LEFT_OUT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{home / _LEFT_OUT} cannot be read ({error}); remove {home} and run again") from error
        return [read_scores(file) for file in sorted(home.glob("*.json")) if file.name != _LEFT_OUT], failed

    def _fixed_settings(self) -> dict[str, Any]:
        settings = asdict(self._recipe)
        kept = {name: settings[name] for name in _FIXED}
        for section, names in (("adapter", ("kind", "rank")), ("training", ("seed", "threads"))):
            for name in names:
                kept[section].pop(name)
        kept["policy"].pop("file")  # its text is among the digests
        own = ("alora_learning_rate", "lora_learning_rate", "rows")
        kept["compare"] = {name: settings["compare"][name] for name in own}
        return json.loads(json.dumps(kept))


def _differing(before: Any, now: Mapping[str, Any]) -> list[str]:
    before = before if isinstance(before, dict) else {}
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
