"""A comparison's folder: the scores of each run, so that an interrupted comparison can go on.

run.yaml            the recipe, reloadable
inputs.json         digests of rows, policies and base, and the settings that a score depends on
arms/RUN/           POLICY.json with the scores; adapters/POLICY as PEFT folders, where the method trains
compare.json        figures, tests and every raw score
compare.md          the tables
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alora.atomic import write_json
from alora.config.schema import JudgeSettings
from alora.config.secrets import redacted
from alora.errors import RunError
from alora.lab.compare.scores import Scores, read_scores
from alora.lab.compare.task import MethodRun
from alora.received import read_record
from alora.training.run_folder import ClaimedFolder

ASK_AGAIN = "rows_to_ask_again"  # a fact of scores: rows that the next call may get an answer to
JUDGE = "judge_digest"  # a fact of a judge's scores: who was asked
_LEFT_OUT = "left_out.json"
_FIXED = ("base", "adapter", "policy", "prompt", "training")


def judge_digest(settings: JudgeSettings) -> str:
    """Digest of the model that judges, and of how much of a conversation it reads."""
    asked = [redacted(str(settings.url)), settings.model, settings.max_characters]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


class ComparisonFolder(ClaimedFolder):
    """The folder of one comparison."""

    kind = "alora comparison"
    outputs = ("arms",)

    def home(self, run: MethodRun) -> Path:
        return self.path / "arms" / run.name

    def write(self, run: MethodRun, scored: Mapping[str, Scores], failed: Mapping[str, str]) -> None:
        """Keep a run's scores; the list of policies without scores comes last and marks the run as written."""
        for policy, scores in scored.items():
            write_json(self.home(run) / f"{policy}.json", asdict(scores))
        write_json(self.home(run) / _LEFT_OUT, dict(failed))

    def finished(self, run: MethodRun) -> bool:
        """Whether the run is complete: no row to be asked about again, and no scores of another judge."""
        if not (self.home(run) / _LEFT_OUT).is_file():
            return False
        if run.arm != "judge":
            return True
        mine, kept = judge_digest(self._recipe.judge), [scores.facts for scores in self.read(run)[0]]
        return all(facts.get(JUDGE) == mine and not facts.get(ASK_AGAIN) for facts in kept)

    def read(self, run: MethodRun) -> tuple[list[Scores], dict[str, str]]:
        """A run's scores, and per missing policy the reason."""
        home = self.home(run)
        failed = read_record(dict[str, str], home / _LEFT_OUT, RunError, f"remove {home} and run again")
        return [read_scores(file) for file in sorted(home.glob("*.json")) if file.name != _LEFT_OUT], failed

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that a score depends on; arms, seeds and ranks may be added from call to call."""
        settings = asdict(self._recipe)
        kept = {name: settings[name] for name in _FIXED}
        # A rank of its own has the scaling of adapter.rank, which is 2 without adapter.alpha.
        rank = ("rank",) if self._recipe.adapter.alpha is None else ()
        for section, names in (("adapter", ("kind", *rank)), ("training", ("seed", "threads"))):
            for name in names:
                kept[section].pop(name)
        kept["policy"].pop("file")  # its text is among the digests
        own = ("alora_learning_rate", "lora_learning_rate", "encoder", "rows")
        return kept | {"compare": {name: settings["compare"][name] for name in own}}
