"""A comparison's folder, its JSON document and its tables; none holds text of a conversation.

run.yaml            the recipe, reloadable
inputs.json         digests of rows, policies and base, and the settings that a score depends on
arms/RUN/           POLICY.json with the scores; adapters/POLICY as PEFT folders, where the method trains
compare.json        figures, tests and every raw score
compare.md          the tables
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from alora.atomic import write_json
from alora.config.schema import JudgeSettings
from alora.config.secrets import redacted
from alora.errors import RunError
from alora.evaluation import tables
from alora.evaluation.battery_report import finite
from alora.lab.compare.figures import Comparison, Method
from alora.lab.compare.task import MethodRun, Scores, read_scores
from alora.received import read_record
from alora.training.run_folder import ClaimedFolder

SCHEMA_VERSION = 1
COLUMNS = {name: tables.COLUMNS.get(name, name) for name in
           ("auroc", "auprc", "accuracy", "f1", "recall_at_1_fpr", "recall_at_5_fpr", "ece")}  # fmt: skip
TITLES = {
    "alora": "aLoRA",
    "alora_cleaned": "aLoRA, doubtful rows left out",
    "lora": "standard LoRA",
    "encoder": "encoder, fine-tuned",
    "encoder_frozen": "encoder, frozen",
    "probe": "linear probe",
    "bag_of_words": "bag of words",
    "prompt": "rule in the prompt",
    "judge": "LLM judge",
}
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


def document(
    comparison: Comparison,
    scores: Sequence[Scores],
    left_out: Mapping[str, Mapping[str, str]],
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """``compare.json``: settings, figures, tests, and every raw score by row id, so that all can be computed again."""
    return finite(
        {
            "schema_version": SCHEMA_VERSION,
            "settings": dict(settings),
            "environment": dict(environment),
            "methods": [asdict(item) for item in comparison.methods],
            "gaps": [asdict(gap) for gap in comparison.gaps],
            "left_out": {run: dict(reasons) for run, reasons in left_out.items() if reasons},
            "scores": [
                {name: part for name, part in asdict(item).items() if name != "schema_version"} for item in scores
            ],
        }
    )


def title(method: Method, ranks: int = 1) -> str:
    """A method's name; with its rank where there are several."""
    arm, rank = method
    return TITLES.get(arm, arm) + (f", rank {rank}" if rank is not None and ranks > 1 else "")


def battery_rows(comparison: Comparison) -> list[list[str]]:
    """Per method the means over the policies, AUROC with its interval; named where it lacks some of them."""
    ranks, every = _ranks(comparison), len(_policies(comparison))
    rows = []
    for item in (item for item in comparison.methods if item.policy is None):
        method = (item.arm, item.rank)
        count = sum(comparison.of(method, policy) is not None for policy in _policies(comparison))
        name = title(method, ranks) + (f" ({count} of {every} policies)" if count < every else "")
        rows.append([name, *(tables.estimate_cell(item.figures[name], name == "auroc") for name in COLUMNS)])
    return rows


def policy_rows(comparison: Comparison) -> list[list[str]]:
    """Per policy and method every figure, AUROC with its interval and its spread over seeds."""
    ranks, rows = _ranks(comparison), []
    for policy in _policies(comparison):
        for item in (item for item in comparison.methods if item.policy == policy):
            cells = [tables.estimate_cell(item.figures[name], name == "auroc") for name in COLUMNS]
            spread = item.spread["auroc"]
            cells.insert(1, "" if spread is None else f"{spread:.3f}")
            rows.append([policy, title((item.arm, item.rank), ranks), f"{item.rows} ({item.positives}+)", *cells])
    return rows


def gap_rows(comparison: Comparison) -> list[list[str]]:
    """Per pair of methods and policy the AUROC gap and its tests; the mean over policies last."""
    ranks = _ranks(comparison)
    counts = Counter((gap.first, gap.second) for gap in comparison.gaps if gap.policy is not None)
    return [
        [
            f"{title(gap.first, ranks)} - {title(gap.second, ranks)}",
            gap.policy or f"mean of {counts[gap.first, gap.second]}",
            f"{gap.value:+.3f}" + ("" if np.isnan(gap.low) else f" [{gap.low:+.3f}, {gap.high:+.3f}]"),
            *(_p(value) for value in (gap.p_bootstrap, gap.p_delong, gap.p_holm)),
        ]
        for gap in comparison.gaps
    ]


BATTERY_HEADINGS = ("method", *COLUMNS.values())
POLICY_HEADINGS = ("policy", "method", "rows", "AUROC", "sd over seeds", *list(COLUMNS.values())[1:])
GAP_HEADINGS = ("AUROC gap", "policy", "gap [95 %]", "p bootstrap", "p DeLong", "p Holm")


def markdown(
    comparison: Comparison, left_out: Mapping[str, Mapping[str, str]], base: str, warnings: Sequence[str] = ()
) -> str:
    policies = _policies(comparison)
    runs = max((item.runs for item in comparison.methods), default=1)
    parts = [
        "# Methods side by side",
        f"{len(policies)} policies on the base {base}; figures are means over {runs} seeds where a method trains. "
        "Thresholds and temperatures are fitted on validation rows; intervals, if any, are 95 % by bootstrap over test "
        "rows.",
        *warnings,
        "## Over the battery (mean of the policies)",
        table(BATTERY_HEADINGS, battery_rows(comparison)),
        "## Paired tests",
        "Both methods on the same rows. P Holm adjusts DeLong's p for the number of policies.",
        table(GAP_HEADINGS, gap_rows(comparison)),
        "## Policy by policy",
        table(POLICY_HEADINGS, policy_rows(comparison)),
    ]
    if reasons := left_out_rows(left_out):
        parts += ["## Left out", table(("run", "policy", "why"), reasons)]
    return "\n\n".join(parts) + "\n"


def left_out_rows(left_out: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
    return [
        [run, policy, reason.splitlines()[0]] for run, reasons in left_out.items() for policy, reason in reasons.items()
    ]


def _policies(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(item.policy for item in comparison.methods if item.policy is not None))


def _ranks(comparison: Comparison) -> int:
    return len({item.rank for item in comparison.methods if item.rank is not None})


def _p(value: float | None) -> str:
    if value is None or np.isnan(value):
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
