"""``alora check``: every row, label, token and length, before any money is spent. No weights are loaded.

With ``policies=[...]`` it looks at a battery: one file per policy (``%policy%``) or rows of all of them.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TypeVar

from tqdm.auto import tqdm

from alora.adapter.folder import target_modules
from alora.base.cache import cache_folder
from alora.base.describe import load_tokenizer
from alora.base.limits import longest_input, require_rank
from alora.base.load import load_skeleton
from alora.commands.output import note, report_file, say, say_json, table, write_json
from alora.commands.show_rows import show_rows
from alora.config.paths import POLICY_PLACE
from alora.config.schema import DataSettings, JudgeSettings, Recipe
from alora.config.secrets import in_the_clear
from alora.data.check import Rows, check_balance, check_duplicates, count_labels
from alora.data.conversation import LabelledConversation, read_labelled
from alora.data.sources import Source
from alora.data.splits import hold_out, merge_rows, read_policy_rows, source_of
from alora.errors import AloraError
from alora.findings import ERROR, WARNING, Finding, Findings
from alora.policy import Policy, load_policies
from alora.prompt.check import TokenLengths, check_prompts
from alora.prompt.render import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from alora.evaluation.noise import Doubt

FAILED, STRICT = 2, 1
SPLITS = ("train", "validation", "test")
NEEDED = ("train", "validation")
CODED = ("policy", "base", "adapter", "adapter.targets", "prompt")  # what has a code of its own where it is unusable
_T = TypeVar("_T")


def run(recipe: Recipe) -> int:
    """Print every finding and a summary; 0 when a run may start, 2 when it may not, 1 for warnings (``strict``)."""
    findings: list[Finding] = []
    policies = _try("policy", findings, lambda: load_policies(recipe.policy, recipe.policies)) or []
    findings += _unread_keys(policies)
    battery = bool(recipe.policies)
    notes: Counter[str] = Counter()
    splits = _read(recipe.data, policies, battery, findings, notes) if policies else {}
    findings += _check_rows(recipe.data, splits, policies, battery)
    if recipe.data.noise and "train" in splits:
        for policy in policies:
            findings += _try(policy.id, findings, lambda policy=policy: _doubts(policy, splits["train"])) or []
            if recipe.judge.url is not None:
                judged = _try(policy.id, findings, lambda policy=policy: _judged(policy, splits["train"], recipe.judge))
                findings += judged or []
    lengths: dict[str, TokenLengths] = {}
    tokenizer = _try("base", findings, lambda: load_tokenizer(recipe.base))
    longest = tokenizer.model_max_length if tokenizer else 0
    if tokenizer and (base := _try("base", findings, lambda: load_skeleton(recipe.base))):
        longest = min(longest, longest_input(base) or longest)
        _try("adapter.targets", findings, lambda: target_modules(base, recipe.adapter.targets))
        _try("adapter", findings, lambda: require_rank(base, recipe.adapter.rank))
    if policies and tokenizer:
        lengths = _check_tokens(recipe, policies, splits, tokenizer, longest, findings)
    errors = sum(finding.count for finding in findings if finding.severity == ERROR)
    warnings = sum(finding.count for finding in findings if finding.severity == WARNING)
    failed = bool(errors or (recipe.strict and findings))
    report = _report(policies, battery, splits, lengths, findings, ready=not failed) | {"notes": dict(notes)}
    if recipe.output is not None:
        write_json(report_file(recipe.output), report)
    if recipe.json:
        say_json(report)
    else:
        for text, times in notes.items():
            say(f"note: {text}" + (f" ({times} times)" if times > 1 else ""))
        _show(policies, battery, splits, lengths, findings, recipe.prompt.truncation == "windows")
        if recipe.show and tokenizer and policies:
            _try("show", findings, lambda: show_rows(recipe, splits, policies, tokenizer))
        counts = f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}"
        say(f"{counts}: {'not ready' if failed else 'ready'} to train")
    if errors:
        return FAILED
    return STRICT if failed else 0


def _doubts(policy: Policy, rows: Rows) -> list[Finding]:
    from alora.evaluation.noise import WORDS_KNOW, doubtful_labels  # scikit-learn, which no other check needs

    doubts, auroc = doubtful_labels(policy, rows)
    found = _as_findings(policy, doubts, "LABEL_DOUBTFUL", "the words of the other rows say")
    if doubts and auroc < WORDS_KNOW:
        text = (f"words reach an AUROC of {auroc:.2f} on rows that they did not see, so many of these {len(doubts)} "
                "labels may be right; read the first ones, or ask a judge (judge.url)")  # fmt: skip
        found.insert(0, Finding(WARNING, "WORDS_UNSURE", f"{policy.id}: train", text))
    return found


def _judged(policy: Policy, rows: Rows, settings: JudgeSettings) -> list[Finding]:
    from alora.comparison.judge import disagreements

    if remark := in_the_clear(str(settings.url)):
        note(remark)
    answers = cache_folder("judge") / f"{policy.id}.jsonl"  # digests and labels, so that none is paid for twice
    return _as_findings(policy, disagreements(policy, rows, settings, answers), "JUDGE_DISAGREES", "the judge says")


def _as_findings(policy: Policy, doubts: "Sequence[Doubt]", code: str, who: str) -> list[Finding]:
    text = "policy {!r} labels it {!r}; {} {!r} ({:.2f}); read it"
    return [
        Finding(WARNING, code, one.row.where, text.format(policy.id, one.label, who, one.likelier, one.probability))
        for one in doubts
    ]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _unread_keys(policies: list[Policy]) -> list[Finding]:
    keys = Counter(key for policy in policies for key in policy.unread)
    text = "alora reads no key {!r} ({} policies have it); notes go under 'metadata'"
    return [Finding(WARNING, "POLICY_KEY_UNREAD", "policy", text.format(key, count)) for key, count in keys.items()]


def _read(
    settings: DataSettings, policies: list[Policy], battery: bool, findings: list[Finding], notes: Counter[str]
) -> dict[str, Rows]:
    """The rows of each split that can be read; validation rows held out as a run would.

    A policy of a battery whose own file is unusable is reported, then taken out of ``policies``, as a run would.
    """

    def read(name: str, source: Source) -> Rows:
        found = Findings()
        found.notes = notes
        if not battery:  # what is wrong with the only policy's labels is the source's fault
            return read_labelled(source_of(source, policies[0]), settings, policies[0], found)
        rows, unusable = read_policy_rows(source, settings, policies, found)
        for policy, error in unusable.items():
            findings.extend(_findings(f"{policy}: {name}", error))
        policies[:] = [policy for policy in policies if policy.id not in unusable]
        return rows

    splits: dict[str, Rows] = {}
    for name in SPLITS:
        source = getattr(settings, name)
        if source is not None:
            rows = _try(name, findings, lambda name=name, source=source: read(name, source))
            splits |= {name: rows} if rows else {}
    if settings.validation is None and "train" in splits:
        train, validation = hold_out(splits["train"], settings.validation_share)
        splits = {"train": train, "validation": validation, **{k: v for k, v in splits.items() if k == "test"}}
    return splits


def _check_rows(
    data: DataSettings, splits: dict[str, Rows], policies: list[Policy], battery: bool
) -> Iterable[Finding]:
    """Balance of each policy's rows; duplicates and leakage among them, or, where they share a file, among all rows."""
    own_files = any(POLICY_PLACE in str(getattr(data, name)) for name in SPLITS)
    for policy in policies:
        mine = {name: [row for row in rows if policy.id in row.labels] for name, rows in splits.items()}
        title = f"{policy.id}: " if battery else ""
        for name, rows in mine.items():
            if battery and not rows:
                severity = ERROR if name in NEEDED else WARNING
                text = "no row is labelled for it; add rows, or leave it out"
                yield Finding(severity, "UNLABELLED", f"{title}{name}", text)
                continue
            for finding in check_balance(name, rows, policy, needed=name in NEEDED):
                yield replace(finding, where=f"{title}{finding.where}")
        if own_files or not battery:
            for finding in check_duplicates(mine, policy):
                yield replace(finding, where=f"{title}{finding.where}")
    if battery and not own_files:
        yield from check_duplicates(splits, *policies)


def _check_tokens(
    recipe: Recipe,
    policies: list[Policy],
    splits: dict[str, Rows],
    tokenizer: "PreTrainedTokenizerBase",
    longest: int,
    findings: list[Finding],
) -> dict[str, TokenLengths]:
    renderer = _try("prompt", findings, lambda: Renderer(tokenizer, recipe.prompt, recipe.base.template_kwargs))
    lengths: dict[str, TokenLengths] = {}
    if renderer is None:
        return lengths
    suffix_of = renderer.suffix
    usable = [policy for policy in policies if _try("prompt", findings, lambda policy=policy: suffix_of(policy))]
    for name, rows in splits.items() if usable else ():
        bar = _with_bar(name, merge_rows(rows) if recipe.policies else rows)
        lengths[name], found = check_prompts(name, bar, usable, renderer, longest)
        findings += found
    return lengths


def _with_bar(name: str, rows: Rows) -> Iterable[LabelledConversation]:
    return tqdm(rows, desc=f"rendering {name}", unit="row", leave=False, disable=not sys.stderr.isatty())


def _try(where: str, findings: list[Finding], make: Callable[[], _T]) -> _T | None:
    """What ``make`` makes; None where it fails, and then one finding for each thing that is wrong."""
    try:
        return make()
    except AloraError as error:
        findings += _findings(where, error)
    return None


def _findings(where: str, error: AloraError) -> list[Finding]:
    code = f"{where.partition('.')[0].upper()}_UNUSABLE" if where in CODED else "UNUSABLE"
    given = getattr(error, "findings", ()) or str(error).splitlines()
    return [item if isinstance(item, Finding) else Finding(ERROR, code, where, str(item)) for item in given]


def _show(
    policies: list[Policy],
    battery: bool,
    splits: dict[str, Rows],
    lengths: dict[str, TokenLengths],
    findings: list[Finding],
    windows: bool,
) -> None:
    for finding in findings:
        say(f"{finding.severity}: {finding}")
    if not policies or not splits:
        return
    say()
    labels = () if battery else policies[0].labels
    rows = []
    for name, members in splits.items():
        tokens = lengths.get(name)
        counts = [] if battery else list(count_labels(members, policies[0]).values())
        cells = [tokens.median, tokens.p95, tokens.longest, tokens.truncated_rows] if tokens else [None] * 4
        lost = f"{tokens.lost_tokens / max(tokens.prefix_tokens, 1):.1%}" if tokens else None
        read = [tokens.windows if tokens else None] if windows else []
        rows.append([name, len(merge_rows(members)) if battery else len(members), *counts, *cells, lost, *read])
    first, last = "conversations" if battery else "rows", ["windows"] if windows else []
    table(("split", first, *labels, "tokens p50", "p95", "max", "truncated", "text lost", *last), rows)
    say()
    if battery:
        table(("policy", "labels", *splits), [_count_row(policy, splits) for policy in policies])
        say()


def _count_row(policy: Policy, splits: dict[str, Rows]) -> list[str]:
    counts = [" / ".join(map(str, count_labels(rows, policy).values())) for rows in splits.values()]
    return [policy.id, " / ".join(policy.labels), *counts]


def _report(
    policies: list[Policy],
    battery: bool,
    splits: dict[str, Rows],
    lengths: dict[str, TokenLengths],
    findings: list[Finding],
    ready: bool,
) -> dict[str, object]:
    """The summary as JSON; ``labels`` counts the one policy's labels, or those of each policy of a battery."""
    summary = {}
    for name, rows in splits.items():
        counts = {policy.id: count_labels(rows, policy) for policy in policies}
        summary[name] = {
            "rows": len(merge_rows(rows)) if battery else len(rows),
            "labels": counts if battery else counts[policies[0].id],
            "tokens": asdict(lengths[name]) if name in lengths else None,
        }
    return {"ready": ready, "findings": [asdict(finding) for finding in findings], "splits": summary}
