"""``alora check``: every row, label, token and length, before any money is spent. No weights are loaded.

With ``policies=[...]`` it looks at a battery: one file per policy (``%policy%``) or rows of all of them.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from alora.adapter.targets import trainable_modules
from alora.atomic import write_json
from alora.base.limits import longest_input, require_rank
from alora.base.load import load_skeleton
from alora.base.stored import load_tokenizer
from alora.commands.output import report_file, say, say_json, table
from alora.config.paths import POLICY_PLACE
from alora.config.schema import Recipe
from alora.data.conversation import Look, look
from alora.data.findings import ERROR, WARNING, Finding, Findings, as_lines, take_warnings
from alora.data.held_out import fold_rows, hold_out
from alora.data.labelled import read_labelled, read_multilabelled
from alora.data.row_checks import (
    Rows,
    check_balance,
    check_duplicates,
    check_roles,
    check_turns,
    count_labels,
    describe_positive,
)
from alora.data.sources import each
from alora.data.splits import data_settings, merge_rows, read_policy_rows, source_for, source_of
from alora.errors import AloraError, DataError, first_line
from alora.policy import Policy, load_policies, note_unread_keys
from alora.prompt.prompt_checks import TokenLengths, check_prompts, show_rows
from alora.prompt.render import Renderer

FAILED, STRICT = 2, 1
SPLITS = ("train", "validation", "test")
NEEDED = ("train", "validation")
CODED = ("policy", "base", "adapter", "adapter.targets", "prompt")  # what has a code of its own where it is unusable
_T = TypeVar("_T")


def run(recipe: Recipe) -> int:
    """Print every finding and a summary; 0 when a run may start, 2 when it may not, 1 for warnings (``strict``)."""
    check = _Check(recipe)
    check.read()
    check.rows()
    if recipe.data.noise and "train" in check.splits:
        check.labels()
    tokenizer = check.base()
    of_kind = Counter(kind for found in check.findings for kind in [found.severity] * found.count)
    errors, warnings = of_kind[ERROR], of_kind[WARNING]
    failed = bool(errors or (recipe.strict and check.findings))
    report = check.report() | {"ready": not failed}
    if recipe.output is not None:
        write_json(report_file(recipe.output), report)
    if recipe.json:
        say_json(report)
    else:
        check.show()
        if recipe.show and tokenizer and check.policies:
            check.attempt("show", lambda: show_rows(recipe, check.splits, check.policies, tokenizer))
        counts = ((errors, "error"), (warnings, "warning"))
        counted = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for number, what in counts)
        say(f"{counted}: {'not ready' if failed else 'ready'} to train")
    if errors:
        return FAILED
    return STRICT if failed else 0


@dataclass
class _Check:
    """What was read so far, and what is wrong with it. A policy of a battery that is unusable is taken out of
    ``policies``, as a run would."""

    recipe: Recipe
    findings: list[Finding] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    policies: list[Policy] = field(default_factory=list)
    splits: dict[str, Rows] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)  # by source
    lengths: dict[str, TokenLengths] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)  # policies with labels that cannot be read

    @property
    def battery(self) -> bool:
        return bool(self.recipe.policies)

    def attempt(self, where: str, make: Callable[[], _T]) -> _T | None:
        """What ``make`` makes; None where it fails, and then one finding for each thing that is wrong."""
        try:
            return make()
        except AloraError as error:
            self.findings += [found for found in _findings(where, error) if found not in self.findings]
        return None

    def read(self) -> None:
        """Policies, and the rows of each split that can be read; validation rows held out as a run would."""
        recipe, data = self.recipe, self.recipe.data
        self.policies = self.attempt("policy", lambda: load_policies(recipe.policy, recipe.policies)) or []
        note_unread_keys(self.policies, self.notes)
        for policy in self.policies:
            if not policy.rule.strip():
                text = "has no rule, which the comparison with a prompt, a judge and alora generate read"
                self.notes[f"policy {policy.id!r} {text}"] += 1
        for name in SPLITS if self.policies else ():
            if source_for(data, name) is not None and (rows := self.attempt(name, partial(self._split, name))):
                self.splits[name] = rows
        self.policies = [policy for policy in self.policies if policy.id not in self.unusable]
        if data.validation is None and "validation" not in self.splits and "train" in self.splits:
            folded = fold_rows(self.splits["train"], data_settings(recipe).folds)
            if sides := self.attempt("validation", lambda: hold_out(folded, data.validation_share)):
                held = {"validation": sides[1]} if sides[1] else {}
                counts = Counter(name for row in sides[0] for name in row.folds)
                text = "training rows is held out once, by folds (data.folds)"
                self.notes.update(f"{name}: each of its {count} {text}" for name, count in counts.items())
                self.splits = {"train": sides[0]} | held | {key: it for key, it in self.splits.items() if key == "test"}

    def _split(self, name: str) -> Rows:
        found, data = Findings(self.notes), self.recipe.data
        source = source_for(data, name)
        assert source is not None
        for file in each(source_of(source, self.policies[0])):
            with contextlib.suppress(DataError):  # which reading it whole tells
                self.looks[file] = self.looks.get(file) or look(file, data)
        if not self.battery:  # what is wrong with the only policy's labels is the source's fault
            if getattr(data, name) is None:  # its rows by data.columns.split, if there are some
                return read_multilabelled(source, data, self.policies, {}, found, name)
            return read_labelled(source_of(source, self.policies[0]), data, self.policies[0], found, name)
        rows, unusable = read_policy_rows(source, data, self.policies, found, name)
        for policy, error in unusable.items():
            self.findings += _findings(f"{policy}: {name}", error)
        self.unusable |= unusable.keys()
        return rows

    def rows(self) -> None:
        """Balance of each policy's rows; duplicates and leakage among them, or, in a shared file, among all rows."""
        self.findings += [*take_warnings(self.notes), *check_turns(self.splits)]
        data = self.recipe.data
        whole = all(name in self.splits for name in SPLITS if getattr(data, name) is not None)
        if self.splits and whole and not self.unusable:  # a role may be of rows that could not be read
            self.findings += check_roles(data.role_map, self.notes)
        own_files = any(POLICY_PLACE in str(getattr(data, name)) for name in SPLITS)
        for policy in self.policies:
            mine = {name: [row for row in rows if policy.id in row.labels] for name, rows in self.splits.items()}
            found: list[Finding] = []
            for name, rows in mine.items():
                absent = Finding(ERROR, "UNLABELLED", name, "no row is labelled for it; add rows, or leave it out")
                counted = rows or not self.battery
                found += check_balance(name, rows, policy, needed=name in NEEDED) if counted else [absent]
            found += check_duplicates(mine, policy) if own_files else []
            title = f"{policy.id}: " if self.battery else ""
            self.findings += [replace(finding, where=f"{title}{finding.where}") for finding in found]
        if not own_files:
            self.findings += check_duplicates(self.splits, *self.policies)

    def labels(self) -> None:
        """Labels that the words of other rows doubt, and a judge, where there is one."""
        from alora.llm.doubted_labels import of_judge, of_run, of_words  # scikit-learn, which no other check needs

        train, judge = self.splits["train"], self.recipe.judge
        for policy in self.policies:
            try:
                of_folds = of_run(policy, train, Path(self.recipe.run_dir))
                self.findings += of_words(policy, train) if of_folds is None else of_folds
            except DataError as error:  # too few rows, or none with a word: that fails no training
                self.notes[f"data.noise=true: {first_line(error)}"] += 1
            if judge.url is not None:
                self.findings += self.attempt(policy.id, partial(of_judge, policy, train, judge)) or []

    def base(self) -> PreTrainedTokenizerBase | None:
        """Targets, rank and every prompt on the base; its tokenizer."""
        adapter, settings = self.recipe.adapter, self.recipe.base
        tokenizer = self.attempt("base", lambda: load_tokenizer(settings))
        if tokenizer is None:
            return None
        longest = tokenizer.model_max_length
        if base := self.attempt("base", lambda: load_skeleton(settings)):
            longest = min(longest, longest_input(base) or longest)
            self.attempt("adapter.targets", lambda: trainable_modules(base, adapter.targets))
            self.attempt("adapter", lambda: require_rank(base, adapter.rank))
        if self.policies:
            self._tokens(tokenizer, longest)
        return tokenizer

    def _tokens(self, tokenizer: PreTrainedTokenizerBase, longest: int) -> None:
        recipe = self.recipe
        renderer = self.attempt("prompt", lambda: Renderer(tokenizer, recipe.prompt, recipe.base.template_kwargs))
        if renderer is None:
            return
        usable = [policy for policy in self.policies if self.attempt("prompt", partial(renderer.suffix, policy))]
        for name, rows in self.splits.items() if usable else ():
            rows = merge_rows(rows) if self.battery else rows
            bar = tqdm(rows, f"rendering {name}", unit="row", leave=False, disable=not sys.stderr.isatty())
            self.lengths[name], found = check_prompts(name, bar, usable, renderer, longest)
            self.findings += found

    def report(self) -> dict[str, object]:
        """The summary as JSON; ``labels`` counts the one policy's labels, or those of each policy of a battery."""
        summary = {}
        for name, rows in self.splits.items():
            counts = {policy.id: count_labels(rows, policy) for policy in self.policies}
            summary[name] = {
                "rows": self._count(rows),
                "labels": counts if self.battery else counts[self.policies[0].id],
                "tokens": asdict(self.lengths[name]) if name in self.lengths else None,
            }
        findings = [asdict(finding) for finding in self.findings]
        formats = {source: asdict(found) for source, found in self.looks.items()}
        return {"ready": True, "findings": findings, "splits": summary, "notes": dict(self.notes), "formats": formats}

    def _count(self, rows: Rows) -> int:
        return len(merge_rows(rows)) if self.battery else len(rows)

    def show(self) -> None:
        """How each source is read, notes, findings, and a table of the splits."""
        for source, found in self.looks.items():
            say(f"{source} is read as {found.format} ({found.why}); data.format=NAME reads it as another")
            for row in found.rows:
                say(f"  {row}")
        for line in as_lines(self.notes):
            say(line)
        for finding in self.findings:
            say(f"{finding.severity}: {finding}")
        if not self.policies or not self.splits:
            return
        say()
        labels = () if self.battery else self.policies[0].labels
        first = "conversations" if self.battery else "rows"
        last = ["windows"] if self._windows else []
        headings = ("split", first, *labels, "tokens p50", "p95", "max", "truncated", "text lost", *last)
        table(headings, [self._split_row(name, rows) for name, rows in self.splits.items()])
        say()
        if self.battery:
            headings, policies = ("policy", "labels, the flagged one first", *self.splits), []
            for policy in self.policies:
                counts = [" / ".join(map(str, count_labels(rows, policy).values())) for rows in self.splits.values()]
                policies.append([policy.id, " / ".join(policy.labels), *counts])
            table(headings, policies)
        else:
            say(describe_positive(*next(iter(self.splits.items())), self.policies[0]))
        say()

    @property
    def _windows(self) -> bool:
        return self.recipe.prompt.truncation == "windows"

    def _split_row(self, name: str, rows: Rows) -> list[object]:
        tokens = self.lengths.get(name)
        counts = [] if self.battery else list(count_labels(rows, self.policies[0]).values())
        cells = [tokens.median, tokens.p95, tokens.longest, tokens.truncated_rows] if tokens else [None] * 4
        lost = f"{tokens.lost_tokens / max(tokens.prefix_tokens, 1):.1%}" if tokens else None
        read = [tokens.windows if tokens else None] if self._windows else []
        return [name, self._count(rows), *counts, *cells, lost, *read]


def _findings(where: str, error: AloraError) -> list[Finding]:
    code = f"{where.partition('.')[0].upper()}_UNUSABLE" if where in CODED else "UNUSABLE"
    given = getattr(error, "findings", ()) or str(error).splitlines()
    return [item if isinstance(item, Finding) else Finding(ERROR, code, where, str(item)) for item in given]
