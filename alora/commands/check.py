"""``alora check``: every row, label, token and length, before any money is spent. Needs the base's tokenizer only."""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from tqdm.auto import tqdm

from alora.base.load import load_tokenizer
from alora.commands.output import say, say_json, table
from alora.config.schema import DataSettings, Recipe
from alora.conversation import LabelledConversation, read_labelled
from alora.data_check import (
    ERROR,
    Finding,
    Rows,
    TokenLengths,
    check_balance,
    check_duplicates,
    check_prompts,
    count_labels,
)
from alora.errors import AloraError
from alora.policy import Policy, load_policy
from alora.render import Renderer
from alora.splits import hold_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FAILED = 2
NEEDED = ("train", "validation")
_PLACE = re.compile(r"(?P<place>\S+:\d+): (?P<problem>.*)", re.DOTALL)
_T = TypeVar("_T")


def run(recipe: Recipe) -> int:
    """Print every finding and a summary; 0 when a run may start, 2 when it may not (``strict``: warnings count)."""
    findings: list[Finding] = []
    policy = _try("policy", findings, lambda: load_policy(recipe.policy))
    splits = _read(recipe.data, policy, findings) if policy else {}
    lengths: dict[str, TokenLengths] = {}
    if policy:
        for name, rows in splits.items():
            findings += check_balance(name, rows, policy, needed=name in NEEDED)
        findings += check_duplicates(splits, policy)
    tokenizer = _try("base", findings, lambda: load_tokenizer(recipe.base))
    if policy and tokenizer:
        lengths = _check_tokens(recipe, policy, splits, tokenizer, findings)
    errors = sum(finding.severity == ERROR for finding in findings)
    failed = bool(errors or (recipe.strict and findings))
    if recipe.json:
        say_json(_report(policy, splits, lengths, findings, ready=not failed))
    else:
        _show(policy, splits, lengths, findings)
        say(f"{errors} errors, {len(findings) - errors} warnings: {'not ready' if failed else 'ready'} to train")
    return FAILED if failed else 0


def _read(settings: DataSettings, policy: Policy, findings: list[Finding]) -> dict[str, Rows]:
    """The rows of each split that can be read; validation rows held out as a run would."""
    splits: dict[str, Rows] = {}
    for name in ("train", "validation", "test"):
        source = getattr(settings, name)
        if source is not None:
            rows = _try(name, findings, lambda source=source: read_labelled(source, settings, policy))
            splits |= {name: rows} if rows else {}
    if settings.validation is None and "train" in splits:
        train, validation = hold_out(splits["train"], settings.validation_share)
        splits = {"train": train, "validation": validation, **{k: v for k, v in splits.items() if k == "test"}}
    return splits


def _check_tokens(
    recipe: Recipe,
    policy: Policy,
    splits: dict[str, Rows],
    tokenizer: "PreTrainedTokenizerBase",
    findings: list[Finding],
) -> dict[str, TokenLengths]:
    def make() -> Renderer:
        renderer = Renderer(tokenizer, recipe.prompt, recipe.base.template_kwargs)
        renderer.suffix(policy)
        return renderer

    renderer = _try("prompt", findings, make)
    lengths: dict[str, TokenLengths] = {}
    for name, rows in splits.items() if renderer else ():
        assert renderer is not None
        bar = _with_bar(name, rows)
        lengths[name], found = check_prompts(name, bar, policy, renderer, tokenizer.model_max_length)
        findings += found
    return lengths


def _with_bar(name: str, rows: Rows) -> Iterable[LabelledConversation]:
    return tqdm(rows, desc=f"rendering {name}", unit="row", leave=False, disable=not sys.stderr.isatty())


def _try(where: str, findings: list[Finding], make: Callable[[], _T]) -> _T | None:
    """What ``make`` makes; None where it fails, and then one finding for each thing that is wrong."""
    try:
        return make()
    except AloraError as error:
        texts = getattr(error, "findings", ()) or str(error).splitlines()
    for text in texts:
        match = _PLACE.fullmatch(text)
        findings.append(Finding(ERROR, *match.group("place", "problem")) if match else Finding(ERROR, where, text))
    return None


def _show(
    policy: Policy | None, splits: dict[str, Rows], lengths: dict[str, TokenLengths], findings: list[Finding]
) -> None:
    for finding in findings:
        say(f"{finding.severity}: {finding.where}: {finding.problem}")
    if policy is None or not splits:
        return
    rows = []
    for name, members in splits.items():
        tokens = lengths.get(name)
        counts = list(count_labels(members, policy).values())
        cells = [tokens.median, tokens.p95, tokens.longest, tokens.truncated_rows] if tokens else [None] * 4
        lost = f"{tokens.lost_tokens / max(tokens.prefix_tokens, 1):.1%}" if tokens else None
        rows.append([name, len(members), *counts, *cells, lost])
    say()
    table(("split", "rows", *policy.labels, "tokens p50", "p95", "max", "truncated", "text lost"), rows)
    say()


def _report(
    policy: Policy | None,
    splits: dict[str, Rows],
    lengths: dict[str, TokenLengths],
    findings: list[Finding],
    ready: bool,
) -> dict[str, object]:
    summary = {
        name: {
            "rows": len(rows),
            "labels": count_labels(rows, policy) if policy else {},
            "tokens": asdict(lengths[name]) if name in lengths else None,
        }
        for name, rows in splits.items()
    }
    return {"ready": ready, "findings": [asdict(finding) for finding in findings], "splits": summary}
