"""``alora check data.noise=true``: training rows whose label looks wrong to the words of other rows, or to a judge."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from alora.base.cache import cache_folder
from alora.config.schema import JudgeSettings
from alora.config.secrets import in_the_clear
from alora.data.findings import WARNING, Finding
from alora.data.row_checks import Rows
from alora.errors import ConfigError
from alora.evaluation.bag_of_words import WORDS_KNOW, Doubt, doubtful_labels, doubts_of
from alora.llm.judge import SURE, ask, require_settings
from alora.policy import Policy
from alora.text import note
from alora.training.layout import POLICIES, PREDICTIONS

SILENT = 0.3  # share of rows without an answer above which the judge's list leaves out too many


def of_run(policy: Policy, rows: Rows, run_dir: Path) -> list[Finding] | None:
    """Labels that the out-of-fold answers of a trained run doubt; None where it holds none of these very rows."""
    file = run_dir / POLICIES / policy.id / PREDICTIONS
    if not file.is_file():
        return None
    mine = [row for row in rows if policy.id in row.labels]
    try:
        lines = pq.read_table(file, filters=[("split", "==", "out_of_fold"), ("method", "in", ["alora", "lora"])])
        known = {(line["where"], line["label"]): line["probabilities"] for line in lines.to_pylist()}
    except (OSError, ValueError, KeyError):  # of another version, or damaged: it only saves the words' guess
        return None
    if not mine or any((row.where, row.labels[policy.id]) not in known for row in mine):
        return None
    probabilities_NL = np.array([known[row.where, row.labels[policy.id]] for row in mine])
    note(f"{policy.id}: labels are doubted by the out-of-fold answers of the run in {run_dir}")
    return _as_findings(policy, doubts_of(policy, mine, probabilities_NL), "LABEL_DOUBTFUL", "the run's folds say")


def of_words(policy: Policy, rows: Rows) -> list[Finding]:
    """Labels that the words of the other rows doubt, and first a warning where words know little."""
    doubts, auroc = doubtful_labels(policy, rows)
    found = _as_findings(policy, doubts, "LABEL_DOUBTFUL", "the words of the other rows say")
    if not doubts or auroc >= WORDS_KNOW:
        return found
    text = (f"words reach an AUROC of {auroc:.2f} on rows that they did not see, so many of these {len(doubts)} "
            "labels may be right; read the first ones, or ask a judge (judge.url)")  # fmt: skip
    return [_unsure(policy, "WORDS_UNSURE", text), *found]


def of_judge(policy: Policy, rows: Rows, settings: JudgeSettings) -> list[Finding]:
    """Labels that are not the judge's, and first a warning where it answered little, or knows little."""
    require_settings(settings)
    if not policy.rule.strip():
        raise ConfigError(f"policy {policy.id!r} has no rule to judge by; give it one")
    if remark := in_the_clear(str(settings.url)):
        note(remark)
    mine = [row for row in rows if policy.id in row.labels]
    note(f"asking {settings.model} about {len(mine)} rows of {policy.id}; answers that are in the cache cost nothing")
    cache = cache_folder("judge") / f"{policy.id}.jsonl"  # digests and labels, so that none is paid for twice
    given, doubts, labels = ask(policy, {"train": mine}, cache, settings)[0]["train"], list[Doubt](), Counter[str]()
    for index, answer in sorted(given.items()):
        own, said = mine[index].labels[policy.id], policy.labels[answer.label_id]
        labels[own] += 1
        if said != own:
            doubts.append(Doubt(mine[index], own, said, SURE if answer.confidence is None else answer.confidence))
    doubts.sort(key=lambda doubt: -doubt.probability)
    silent, agreed, warnings = len(mine) - len(given), len(given) - len(doubts), []
    if silent > SILENT * len(mine):
        text = (f"the judge gave no readable answer for {silent} of {len(mine)} rows, so it doubts none of their "
                "labels; raise judge.max_tokens if it thinks before it answers, or ask another model")  # fmt: skip
        warnings.append(_unsure(policy, "JUDGE_UNREADABLE", text))
    if doubts and agreed <= (commonest := max(labels.values())):
        text = (f"the judge agrees with {agreed} of {len(given)} labels, and one label for all rows would with "
                f"{commonest}; so many of these {len(doubts)} labels may be right; read the first ones, or ask another "
                "model")  # fmt: skip
        warnings.append(_unsure(policy, "JUDGE_UNSURE", text))
    return [*warnings, *_as_findings(policy, doubts, "JUDGE_DISAGREES", "the judge says")]


def _unsure(policy: Policy, code: str, text: str) -> Finding:
    return Finding(WARNING, code, f"{policy.id}: train", text)


def _as_findings(policy: Policy, doubts: Sequence[Doubt], code: str, who: str) -> list[Finding]:
    text = "policy {!r} labels it {!r}; {} {!r} ({:.2f}); read it"
    return [
        Finding(WARNING, code, one.row.where, text.format(policy.id, one.label, who, one.likelier, one.probability))
        for one in doubts
    ]
