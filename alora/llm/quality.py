"""How good generated rows are: agreement, copies, whether word counts solve them; in a table and as codes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alora.data.findings import ERROR, WARNING, Finding
from alora.data.row_checks import LEAST_POSITIVES
from alora.evaluation.html import in_markdown, markdown_table
from alora.llm.minimal_pairs import Case
from alora.policy import Policy

LEAST_ROWS, SOLVED, LEAST_AGREEMENT, MOST_SHARE = 70, 0.95, 0.5, 0.3


@dataclass(frozen=True)
class Quality:
    """What became of the pairs that were asked for."""

    policy: Policy
    pairs_wanted: int
    pairs_asked: int  # to their last vote
    pairs_unreadable: int
    cases: Sequence[Case]  # judged ones, dropped or not
    dropped: Mapping[str, str]  # id → reason
    kept: Mapping[str, Sequence[Case]]  # split → its rows
    words_auroc: float | None
    length_auroc: float | None
    dimensions_from: str
    budget: str = ""  # what ended the run before its time

    @property
    def rows(self) -> list[Case]:
        return [case for cases in self.kept.values() for case in cases]

    def as_dict(self) -> dict[str, Any]:
        """The figures; shares are None where there is nothing to share."""
        judged, decided = len(self.cases), [case for case in self.cases if case.label is not None]
        return {
            "policy": self.policy.id,
            "dimensions": self.dimensions_from,
            "pairs_wanted": self.pairs_wanted,
            "pairs_asked": self.pairs_asked,
            "pairs_unreadable": self.pairs_unreadable,
            "cases_judged": judged,
            "agreed_in_round_1": _share(sum(case.rounds == 1 for case in decided), judged),
            "agreed_in_the_end": _share(len(decided), judged),
            "label_as_written": _share(sum(case.label == case.intended for case in decided), len(decided)),
            **self._by_model(),
            "copies": sum(reason.startswith("copy") for reason in self.dropped.values()),
            "dropped": dict(Counter(reason.partition(":")[0] for reason in self.dropped.values())),
            "rows": {
                split: {label: sum(case.label == label for case in cases) for label in self.policy.labels}
                for split, cases in self.kept.items()
            },
            "words_auroc": self.words_auroc,
            "length_auroc": self.length_auroc,
        }

    def _by_model(self) -> dict[str, Any]:
        """Each model's share of votes for the label that the case was written for, where several models vote."""
        votes = [(model, label == case.intended) for case in self.cases for model, label in case.voters]
        asked, right = Counter(model for model, _ in votes), Counter(model for model, same in votes if same)
        return {"as_written_by_model": {model: right[model] / asked[model] for model in asked}} if asked else {}

    def findings(self) -> list[Finding]:
        """Reasons not to train on these rows as they are."""
        figures = self.as_dict()
        findings: list[Finding] = []

        def add(severity: str, code: str, problem: str) -> None:
            findings.append(Finding(severity, code, self.policy.id, problem))

        self._check_rows(figures, add)
        if figures["pairs_unreadable"] > MOST_SHARE * max(1, self.pairs_asked):
            add(WARNING, "UNREADABLE", f"{self.pairs_unreadable} of {self.pairs_asked} pairs could not be read")
        if (agreed := figures["agreed_in_the_end"]) is not None and agreed < LEAST_AGREEMENT:
            add(WARNING, "JUDGES_SPLIT", f"the judges agree on {agreed:.0%} of the cases; the rule may be unclear")
        if (same := figures["label_as_written"]) is not None and same < 1 - MOST_SHARE:
            add(WARNING, "LABELS_TURNED", f"only {same:.0%} of the cases have the label that they were written for")
        if figures["copies"] > MOST_SHARE * max(1, len(self.cases)):
            add(WARNING, "COPIES", f"{figures['copies']} of {len(self.cases)} cases repeat another one")
        probes = (("WORDS_SOLVE", "counting words", self.words_auroc), ("LENGTH_SOLVES", "length", self.length_auroc))
        for code, probe, auroc in probes:
            if auroc is not None and auroc >= SOLVED:
                add(WARNING, code, f"{probe} alone reaches an AUROC of {auroc:.3f}: the rows give the label away, and "
                                   "an adapter need not learn the rule")  # fmt: skip
        if self.dimensions_from == "built in":
            add(WARNING, "BUILT_IN_DIMENSIONS", "the model named no dimensions; edit dimensions.yaml and call again")
        return findings

    def _check_rows(self, figures: Mapping[str, Any], add: Callable[[str, str, str], None]) -> None:
        labels = Counter(case.label for case in self.rows)
        missing = [label for label in self.policy.labels if not labels[label]]
        held_out = {case.label for case in self.kept.get("validation", ())}
        counts = ", ".join(f"{labels[label]} {label}" for label in self.policy.labels)
        why = ", ".join(f"{count} {reason}" for reason, count in figures["dropped"].items()) or "none"
        if self.budget:
            add(WARNING, "BUDGET_SPENT", f"{self.budget} was reached after {self.pairs_asked} of {self.pairs_wanted} "
                                         "pairs; the same command with more of it goes on")  # fmt: skip
        if self.budget and not self.cases:
            add(ERROR, "NO_ROWS", f"no row is left: {self.budget} was reached before a pair had all its votes")
        elif not self.cases:
            add(ERROR, "NO_ROWS", "no row is left: no pair could be read; see calls.jsonl, or take another model")
        elif not self.rows:
            add(ERROR, "NO_ROWS", f"no row is left (dropped: {why}); see dropped.jsonl, take another model, or edit "
                                  "dimensions.yaml")  # fmt: skip
        elif missing:
            add(ERROR, "ONE_LABEL", f"no row is labelled {' or '.join(missing)} (dropped: {why}): the judges do not "
                                    "tell them apart, or filters took them; see dropped.jsonl")  # fmt: skip
        elif len(held_out) < len(self.policy.labels):
            add(ERROR, "ONE_LABEL", f"validation rows hold {len(held_out)} of {len(self.policy.labels)} labels: "
                                    "too few pairs are left to hold some out; raise generate.pairs")  # fmt: skip
        else:
            self._check_numbers(labels, counts, add)
        if not missing and min(labels.values()) < MOST_SHARE * max(labels.values()):
            add(WARNING, "UNBALANCED", f"{counts}: filters and judges took one label more than another; see "
                                       "dropped.jsonl, or set training.class_weights=balanced")  # fmt: skip

    def _check_numbers(self, labels: Counter[str | None], counts: str, add: Callable[[str, str, str], None]) -> None:
        """Whether there is enough of each label to learn, and to fit a threshold."""
        validation, positive = self.kept["validation"], self.policy.positive
        few = sum(case.label == positive for case in validation)
        if few < LEAST_POSITIVES:
            text = f"{few} of {len(validation)} validation rows are {positive}, a threshold needs {LEAST_POSITIVES}"
            add(WARNING, "FEW_POSITIVES", f"{text}; raise generate.pairs, or give labelled rows as data.validation")
        if min(labels[label] for label in self.policy.labels) < LEAST_ROWS:
            add(WARNING, "FEW_ROWS",
                f"{counts}: below {LEAST_ROWS} of a label little is learnt; raise generate.pairs")  # fmt: skip


def markdown(quality: Quality, spent: dict[str, Any]) -> str:
    """The report as a page; the policy and the model's name are untrusted text."""
    figures = quality.as_dict() | spent
    rows = [(name.replace("_", " "), in_markdown(_cell(value))) for name, value in figures.items()]
    findings = "\n".join(f"- **{one.severity}** {in_markdown(str(one))}" for one in quality.findings())
    title = f"# Rows for {in_markdown(quality.policy.title)}"
    return "\n\n".join((title, markdown_table(("", ""), rows), findings)).rstrip() + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_cell(item)}" for name, item in value.items()) or "none"
    return "-" if value is None else str(value)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
