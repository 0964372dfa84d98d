"""The method that asks another model (:mod:`alora.llm.judge`). A row without an answer after all tries has no score.

Figures cover the rows that have one, and their share is reported. Where the endpoint failed on a row, rather than
refused it, the method stays open and the next call asks again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from alora.config.schema import JudgeSettings
from alora.data.conversation import LabelledConversation
from alora.lab.compare.compare_folder import ASK_AGAIN, JUDGE, judge_digest
from alora.lab.compare.scores import RowScores, Scores, calibration_rows, labelled_for
from alora.lab.compare.task import MethodRun, Task
from alora.llm.client import JudgeUsage, NoAnswer
from alora.llm.judge import SURE, ask, require_settings
from alora.llm.judge_prompt import Answer
from alora.policy import Policy


def ask_and_score(task: Task, run: MethodRun, home: Path) -> dict[str, Scores]:
    """Ask the judge about every validation and test row of every policy; answers are kept below ``home``."""
    settings = task.recipe.judge
    require_settings(settings)
    scores = {}
    for policy in task.policies:
        known = calibration_rows(task.splits, policy, run.arm)
        rows = {"validation": known, "test": labelled_for(policy, task.splits.test)}
        given, usage, silent = ask(policy, rows, home / "answers" / f"{policy.id}.jsonl", settings)
        parts = {name: _scores(policy, part, given[name]) for name, part in rows.items()}
        facts = _facts(settings, usage, silent)
        # Where nothing at all was answered, something is to be mended before these rows can be.
        facts[ASK_AGAIN] = silent[NoAnswer.FAILED] if any(given.values()) else silent.total()
        scores[policy.id] = Scores(run.arm, policy.id, None, None, parts["validation"], parts["test"], facts)
    return scores


def _scores(policy: Policy, rows: Sequence[LabelledConversation], given: Mapping[int, Answer]) -> RowScores:
    """Scores of the rows that have an answer, in the rows' order."""
    kept, labels = sorted(given), len(policy.labels)
    return RowScores.of(
        ids=tuple(rows[index].conversation.id for index in kept),
        label_ids_N=np.array([policy.label_index(rows[index].labels[policy.id]) for index in kept], dtype=np.int64),
        logits_NL=np.array([logits(given[index], labels) for index in kept], dtype=np.float64).reshape(-1, labels),
        asked=len(rows),
    )


def logits(answer: Answer, labels: int) -> list[float]:
    """Log-probabilities: the confidence on the label given, the rest shared by the others, none of them above it."""
    sure = SURE if answer.confidence is None else min(SURE, max(1 / labels, answer.confidence))
    rest = min(sure, (1 - sure) / (labels - 1))
    return np.log([sure if index == answer.label_id else rest for index in range(labels)]).tolist()


def _facts(settings: JudgeSettings, usage: JudgeUsage, silent: Counter[NoAnswer]) -> dict[str, Any]:
    refused = silent[NoAnswer.REFUSED] + silent[NoAnswer.FILTERED]
    facts: dict[str, Any] = {"model": settings.model, JUDGE: judge_digest(settings)}
    facts |= {**asdict(usage), "refused_rows": refused}
    return facts | ({} if settings.input_price is None else {"cost": round(usage.cost(settings), 6)})
