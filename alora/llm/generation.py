"""``alora generate``: the folder of generated rows, from a policy's text to rows that can be trained on.

The folder (``output``; ``generated/ID`` by default) holds ``dimensions.yaml``, which you may edit, every answer of the
model (``calls.jsonl``), ``train.jsonl`` and ``validation.jsonl``, ``dropped.jsonl`` with reasons, and the report. The
same command goes on where it stopped and pays for no answer twice.
"""

import hashlib
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tqdm.auto import tqdm

from alora.atomic import alone_in, is_part, write_json, write_text
from alora.config.schema import Recipe
from alora.config.secrets import in_the_clear
from alora.data.conversation import Conversation, LabelledConversation
from alora.data.splits import read_shared_rows
from alora.errors import ConfigError
from alora.llm.calls import BudgetSpent, Calls
from alora.llm.filters import leak, length_auroc, near_duplicates, words_auroc
from alora.llm.judge import require_settings
from alora.llm.minimal_pairs import Case, cells, find_dimensions, judged_pairs
from alora.llm.prompts import DIMENSIONS
from alora.llm.quality import Quality, markdown
from alora.policy import Policy, load_policies
from alora.received import decode, read_record
from alora.text import note, printable, read_yaml, sha256_of

_MARK, _DROPPED = "generated.json", "dropped.jsonl"


@dataclass(frozen=True)
class _Mark:
    """Whose folder it is: the policy, and by name the sha256 of the rows that were written, or may have been."""

    generated_for: dict[str, Any]
    wrote: dict[str, list[str]] = field(default_factory=dict)


def generate(recipe: Recipe) -> tuple[Quality, Path, dict[str, Any]]:
    """Rows for the recipe's policy: what they are worth, where they lie, and what all calls so far have cost."""
    policies = load_policies(recipe.policy, recipe.policies)
    if len(policies) != 1:
        raise ConfigError("alora generate takes one policy at a time; choose it with policy.id=ID")
    policy, judge = policies[0], recipe.judge
    require_settings(judge)
    if not policy.rule.strip():
        raise ConfigError(f"policy {policy.id!r} has no rule to write from; give it one")
    if recipe.generate.max_cost is not None and judge.input_price is None:
        raise ConfigError("generate.max_cost needs prices; set judge.input_price and judge.output_price")
    if len(judges := recipe.generate.judges) > recipe.generate.votes:
        raise ConfigError(f"generate.judges names {len(judges)} models; raise generate.votes to {len(judges)}")
    if remark := in_the_clear(str(judge.url)):
        note(remark)
    folder = Path(recipe.output) if recipe.output else Path("generated") / policy.id
    known = [row.conversation for source in (recipe.data.test, recipe.data.validation) if source
             for row in read_shared_rows(source, recipe.data, [policy])[0]]  # fmt: skip
    _claim(folder, policy)
    with alone_in(folder, "output="), Calls(folder / "calls.jsonl", recipe.generate, judge) as calls:
        quality = _rows(recipe, policy, folder, calls, known)
        total = calls.total
        spent: dict[str, Any] = {
            "model": judge.model, "requests": total.requests, "failed_requests": total.failed_requests,
            "input_tokens": total.input_tokens, "output_tokens": total.output_tokens,
            "cost": None if judge.input_price is None else round(calls.cost, 6),
        }  # fmt: skip
        _write(folder, quality, spent)
    return quality, folder, spent


def _rows(recipe: Recipe, policy: Policy, folder: Path, calls: Calls, known: Sequence[Conversation]) -> Quality:
    settings, file = recipe.generate, folder / "dimensions.yaml"
    questions = settings.pairs * (1 + len(policy.labels) * settings.votes)
    limits = {"max_calls": settings.max_calls, "max_cost": settings.max_cost}
    budget = ", ".join(f"{name}={most:g}" for name, most in limits.items() if most is not None) or "none"
    note(f"{settings.pairs} pairs: about {questions} requests, up to twice as many where judges disagree; "
         f"budget: {budget}")  # fmt: skip
    found: list[list[Case] | None] = []
    source, ended = "dimensions.yaml", ""
    try:
        if not file.exists():
            named, source = find_dimensions(calls, policy, recipe), "model"
            write_text(file, yaml.safe_dump(named or DIMENSIONS, allow_unicode=True, sort_keys=False))
        dimensions = _dimensions(file, settings.hold_out)
        source = "built in" if dimensions == DIMENSIONS else source
        found, ended = _ask(recipe, policy, calls, cells(dimensions, settings.pairs, recipe.training.seed))
    except BudgetSpent as spent:
        ended = str(spent)
    if ended:
        note(f"the budget is spent ({ended}); the same command with more of it goes on")
    if calls.refusal:  # its words may quote a row, so they go into no file
        failed = f"{calls.usage.failed_requests} requests failed"
        note(printable(f"{failed}; the last time the endpoint said {calls.refusal}"))
    cases = [case for pair in found for case in pair or []]
    dropped = _dropped(recipe, policy, cases, known)
    kept = [case for case in cases if case.conversation.id not in dropped]
    splits = _split(kept, recipe.data.validation_share, settings.hold_out)
    rows = [LabelledConversation(case.conversation, {policy.id: str(case.label)}) for case in kept]
    solved = words_auroc(policy, rows, [case.pair for case in kept]), length_auroc(policy, rows)
    pairs = settings.pairs, len(found), found.count(None)
    return Quality(policy, *pairs, cases, dropped, splits, *solved, source, ended)


def _ask(
    recipe: Recipe, policy: Policy, calls: Calls, wanted: Sequence[Mapping[str, str]]
) -> tuple[list[list[Case] | None], str]:
    """The pairs that were asked about to their end, None for those that cannot be read; and the budget, if it ended."""
    asked: list[list[Case] | None] = []
    ended = ""
    with (
        tqdm(desc="generating", total=len(wanted), unit="pair") as bar,
        closing(judged_pairs(calls, policy, wanted, recipe)) as pairs,
    ):
        for pair in pairs:
            if isinstance(pair, BudgetSpent):
                ended = str(pair)  # a pair behind it may have all its answers
                continue
            asked.append(pair)
            bar.set_postfix_str(f"{calls.total.requests} requests, cost {calls.cost:.4f}", refresh=False)
            bar.update()
    return asked, ended


def _dropped(recipe: Recipe, policy: Policy, cases: Sequence[Case], known: Sequence[Conversation]) -> dict[str, str]:
    """Ids of cases that nobody should train on, with the reason; ``known`` are rows that they must not repeat."""
    found: dict[str, str] = {}
    pairs: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        pairs[case.pair].append(case)
    for case in cases:
        if case.label is None:
            split = sum(map(bool, case.votes.values())) > 1
            found[case.conversation.id] = f"split: {'the judges did not agree' if split else 'a judge gave no label'}"
        elif word := leak(case, policy, pairs[case.pair]):
            found[case.conversation.id] = f"leak: it holds {word!r}"
    left = [case for case in cases if case.conversation.id not in found]
    texts, owners = [case.conversation for case in left], [case.pair for case in left]
    copies = near_duplicates(texts, owners, recipe.generate.similarity, known)
    return found | {left[number].conversation.id: f"copy: of {of}" for number, of in copies.items()}


def _split(cases: Sequence[Case], share: float, dimension: str | None) -> dict[str, list[Case]]:
    """Train and validation rows: whole pairs, or all pairs with a value of ``dimension``, the first by a hash of their
    name until the share is full; where filters left all labels of some, validation rows are of those."""

    def group(case: Case) -> str:
        return case.pair if dimension is None else case.cell[dimension]

    labels: dict[str, set[str | None]] = defaultdict(set)
    for case in cases:
        labels[group(case)].add(case.label)
    most = max(map(len, labels.values()), default=0)
    order = {name: (len(labels[name]) < most, hashlib.sha256(name.encode()).hexdigest()) for name in labels}
    groups = sorted(labels, key=order.__getitem__)
    held = set(groups[: min(max(1, round(len(groups) * share)), len(groups) - 1)])
    return {
        "train": [case for case in cases if group(case) not in held],
        "validation": [case for case in cases if group(case) in held],
    }


def _claim(folder: Path, policy: Policy) -> None:
    """Take ``folder``; ConfigError where it is another's, or its rows were edited and would be written over."""
    if (folder / _MARK).exists():
        _refuse_edits(folder, policy)
    elif folder.exists() and any(item.name != "dimensions.yaml" and not is_part(item) for item in folder.iterdir()):
        raise ConfigError(f"{folder} is not a folder of alora generate and is not empty; give another output=")
    else:
        write_json(folder / _MARK, asdict(_Mark(policy.as_dict())))


def _refuse_edits(folder: Path, policy: Policy) -> None:
    """ConfigError where the mark is another policy's, or of rows that are not those that lie there."""
    found = read_record(_Mark, folder / _MARK, ConfigError, "give another output=")
    if found.generated_for != policy.as_dict():
        raise ConfigError(f"{folder} holds rows of another policy or rule; give another output=, or remove it")
    for name in ("train.jsonl", "validation.jsonl", _DROPPED):
        file = folder / name
        if file.exists() and sha256_of(file) not in found.wrote.get(name, ()):
            train = "" if name == _DROPPED else f"train on it ({as_data(folder)}), or "
            raise ConfigError(f"{file} was edited since it was written, and would be written over; {train}move it away")


def as_data(folder: Path) -> str:
    return shlex.join([f"data.train={folder}/train.jsonl", f"data.validation={folder}/validation.jsonl"])


def _dimensions(file: Path, held: str | None) -> dict[str, list[str]]:
    """What ``file`` holds; ConfigError where it is not a list of values by name, or ``held`` cannot be held out."""
    remedy = "write NAME: [VALUE, VALUE, ...]"
    try:
        dimensions = decode(dict[str, list[str]], read_yaml(file, ConfigError, remedy), "the file")
    except TypeError as error:
        raise ConfigError(f"{file}: {error}; {remedy}") from error
    if not all([dimensions, *dimensions.values()]):
        raise ConfigError(f"{file} holds no dimensions, or one without values; {remedy}")
    if held is not None and len(set(dimensions.get(held, ()))) < 2:
        others = ", ".join(name for name, values in dimensions.items() if len(set(values)) > 1)
        raise ConfigError(f"generate.hold_out={held} is not a dimension with two values in {file}: {others}")
    return dimensions


def _write(folder: Path, quality: Quality, spent: dict[str, Any]) -> None:
    """Rows and report. The mark names the digests of old and new rows first: a kill leaves either."""
    policy = quality.policy
    _refuse_edits(folder, policy)  # once more: a run may take hours
    dropped = [case.as_row(policy) | {"reason": quality.dropped[case.conversation.id]}
               for case in quality.cases if case.conversation.id in quality.dropped]  # fmt: skip
    texts = {f"{split}.jsonl": _lines(case.as_row(policy) for case in cases) for split, cases in quality.kept.items()}
    texts[_DROPPED] = _lines(dropped)
    wrote = {name: [hashlib.sha256(text.encode()).hexdigest()] for name, text in texts.items()}
    for name in texts:
        wrote[name] += [sha256_of(folder / name)] if (folder / name).exists() else []
    write_json(folder / _MARK, asdict(_Mark(policy.as_dict(), wrote)))
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / "report.json", quality.as_dict() | spent)
    write_text(folder / "report.md", markdown(quality, spent))


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
