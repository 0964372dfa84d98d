"""A policy: one rule with its ordered labels, and the answer word of each label."""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alora.config.schema import PolicySettings
from alora.errors import ConfigError, PolicyError
from alora.text import printable, read_yaml

DEFAULT_LABELS: Mapping[str, str] = MappingProxyType({"violation": "Yes", "ok": "No"})
KEYS = ("id", "title", "rule", "labels", "judge")
CONVERSATION, LAST_TURN = JUDGED = ("conversation", "last_turn")  # what a rule is about
METADATA = ("sources", "counts", "notes", "metadata")  # a policy file may say where its rows come from; not read
LISTS = ("policies", "multilabel_policies")
LONGEST_ID = 128  # letters; a file name has room for it and an ending
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_ID - 1}}}")
_REMEDY = "give a YAML file with id, title and rule"


@dataclass(frozen=True)
class Policy:
    """One guardrail rule.

    ``labels`` are ordered and ``labels[0]`` is the positive one, whose probability a verdict reports.
    ``answers[i]`` is the word that the model answers for ``labels[i]``; it must be a single token in context, which
    :class:`alora.prompt.render.Renderer` checks on the tokenizer at hand. ``judge``: the whole conversation is judged,
    or its last turn, to which the turns before are context. ``unread`` are keys of its file that alora does not know.
    """

    id: str
    title: str
    rule: str
    labels: tuple[str, ...] = tuple(DEFAULT_LABELS)
    answers: tuple[str, ...] = tuple(DEFAULT_LABELS.values())
    judge: str = CONVERSATION
    unread: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise PolicyError(f"policy {self.id!r}: {problem}")

    @property
    def positive(self) -> str:
        return self.labels[0]

    def label_index(self, label: str) -> int:
        """Position of ``label``; PolicyError when the policy does not have it."""
        try:
            return self.labels.index(label)
        except ValueError:
            raise PolicyError(
                f"label {label!r} is not one of {self.labels} of policy {self.id!r}; "
                "fix the row, map it with data.label_map, or add the label to the policy"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """The form that :func:`policy_from_mapping` reads back."""
        return {
            "id": self.id,
            "title": self.title,
            "rule": self.rule,
            "labels": dict(zip(self.labels, self.answers, strict=True)),
        } | ({} if self.judge == CONVERSATION else {"judge": self.judge})

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        """How a record that holds one is decoded: from the form of :meth:`as_dict`."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda mapping: policy_from_mapping(mapping, "policy"))


def _problem(policy: Policy) -> str | None:
    """What is wrong with it first; None where it is sound."""
    shown = {"title": (policy.title,), "labels": policy.labels, "answer words": policy.answers}
    texts = {"id": (policy.id,), "rule": (policy.rule,), **shown}
    for name, values in texts.items():
        for text in values:
            if not isinstance(text, str) or not (text.strip() or name == "rule"):
                return f"{name!r} is {text!r}; give it a text"
            if name in shown and printable(text) != text:
                return f"{text[:80]!r} holds a control character, which a terminal would obey; write it as plain text"
        if len(set(values)) != len(values):
            return f"{name} {list(values)} repeat; each must be its own"
    if not _ID.fullmatch(policy.id):
        return f"its id names files; use {LONGEST_ID} letters, digits, '_', '-' and '.' at most"
    if policy.id.casefold() == "battery.json":
        return "its id is the name of a battery's list; choose another"
    if policy.judge not in JUDGED:
        return f"'judge' is {policy.judge!r}; write {' or '.join(JUDGED)}"
    if len(policy.labels) < 2:
        return f"{len(policy.labels)} label(s); a classifier needs at least two"
    if len({label.strip().casefold() for label in policy.labels}) < len(policy.labels):
        return (f"some of {list(policy.labels)} differ in capitals or blanks alone, and rows and judges are read "
                "without them; give each label its own word")  # fmt: skip
    if len(policy.answers) != len(policy.labels):
        return f"{len(policy.answers)} answer words for {len(policy.labels)} labels"
    return None


def load_policies(settings: PolicySettings, ids: Sequence[str] = ()) -> list[Policy]:
    """The policies that a recipe names: those of its file that ``ids`` list, in that order (``*``: all of them).

    Without ``ids`` it is one: from the file, inline, or from the file with inline changes.
    """
    if not ids:
        return [_one(settings)]
    if len(set(ids)) < len(ids) or ("*" in ids and len(ids) > 1):
        raise ConfigError(f"policies=[{','.join(ids)}]: name each policy once, or all of them by '*' alone")
    if settings.file is None:
        raise PolicyError("policies= picks from a file of policies; set policy.file=FILE.yaml")
    return _of_file(settings.file, ids)


def _one(settings: PolicySettings) -> Policy:
    if settings.file is None:
        if settings.title is None:
            raise PolicyError("no policy is given; give policy.file=FILE, or policy.id, policy.title and policy.rule")
        slug = re.sub(r"[^a-z0-9]+", "_", settings.title.casefold()).strip("_")[:LONGEST_ID] or "policy"
        given = {"id": settings.id or slug, "title": settings.title, "rule": settings.rule or ""}
        given |= {"judge": settings.judge} if settings.judge else {}
        return policy_from_mapping(given | ({"labels": settings.labels} if settings.labels else {}), "policy")
    policy, *others = _of_file(settings.file, [settings.id] if settings.id else ["*"])
    if others:
        ids = ", ".join(item.id for item in (policy, *others))
        raise PolicyError(f"{settings.file} holds {1 + len(others)} policies; pick one with policy.id= one of {ids}")
    changes: dict[str, Any] = {
        key: value for key in ("title", "rule", "judge") if (value := getattr(settings, key)) is not None
    }
    if settings.labels:
        changes |= _labels(settings.labels, "policy.labels")
    return replace(policy, **changes)


def _of_file(file: str, ids: Sequence[str]) -> list[Policy]:
    known = {policy.id: policy for policy in read_policies(file)}
    wanted = list(known) if list(ids) == ["*"] else list(ids)
    if missing := [name for name in wanted if name not in known]:
        close = difflib.get_close_matches(missing[0], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
        raise PolicyError(f"{file} has no policy {', '.join(map(repr, missing))}; {hint}")
    return [known[name] for name in wanted]


def note_unread_keys(policies: Sequence[Policy], notes: Counter[str]) -> None:
    """Count in ``notes`` the keys of policies that alora does not know."""
    text = "alora reads no key {!r} of a policy; notes of your own go under 'metadata'"
    notes.update(text.format(key) for policy in policies for key in policy.unread)


def read_policies(path: str | Path) -> list[Policy]:
    """The policies of a YAML (or JSON) file: one mapping, a list of them, or a mapping with ``policies``.

    ``multilabel_policies`` next to them are read too; a policy that is in both lists counts as it is in ``policies``.
    """
    path = Path(path)
    policies: dict[str, Policy] = {}
    problems: list[str] = []
    for values in _lists(read_yaml(path, PolicyError, _REMEDY), path):
        names: set[str] = set()
        for where, value in values:
            try:
                policy = policy_from_mapping(value, where)
            except PolicyError as error:
                problems.append(str(error))
                continue
            if policy.id in names:
                problems.append(f"{where}: policy id {policy.id!r} is there twice; rename one")
            names.add(policy.id)
            policies.setdefault(policy.id, policy)
    if problems:
        raise PolicyError("\n".join(problems))
    return list(policies.values())


def policy_from_mapping(mapping: Any, where: str) -> Policy:
    """A policy from plain data (YAML, JSON, a manifest); ``where`` opens every error message.

    ``labels`` maps each label to its answer word, positive first; a list of two labels takes the words Yes and No;
    without it the labels are violation (Yes) and ok (No). ``title`` defaults to the id in words.
    """
    if not isinstance(mapping, Mapping):
        raise PolicyError(f"{where}: a policy is a mapping with id, title, rule and labels, not {_kind(mapping)}")
    unread = tuple(str(key) for key in mapping if key not in (*KEYS, *METADATA))
    for key in unread:
        if (close := difflib.get_close_matches(key, KEYS, n=1)) and close[0] not in mapping:
            raise PolicyError(f"{where}: unknown key {key!r}; did you mean {close[0]!r}?")
    name = mapping.get("id")
    if not isinstance(name, str) or not name:
        raise PolicyError(f"{where}: 'id' is {_kind(name)}; give the policy an id, a text in quotes")
    title = mapping.get("title", re.sub(r"[_.-]+", " ", name).strip().capitalize())
    rule, judge = mapping.get("rule", ""), mapping.get("judge", CONVERSATION)
    labels = _labels(mapping.get("labels") or DEFAULT_LABELS, where)
    try:
        return Policy(id=name, title=title, rule=rule, judge=judge, unread=unread, **labels)
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from None


def _labels(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    if (
        isinstance(value, list)
        and len(value) == len(DEFAULT_LABELS)
        and not any(isinstance(text, list | dict) for text in value)
    ):
        value = dict(zip(value, DEFAULT_LABELS.values(), strict=True))
    if not isinstance(value, Mapping):
        raise PolicyError(f"{where}: 'labels' is {_kind(value)}; map each label to its answer word, positive first")
    for text in (*value, *value.values()):
        if isinstance(text, bool):
            raise PolicyError(f"{where}: YAML reads a bare Yes or No as a boolean; put the words of 'labels' in quotes")
    return {"labels": tuple(value), "answers": tuple(value.values())}


def _lists(content: Any, path: Path) -> list[list[tuple[str, Any]]]:
    """Each list of policies in a file; each policy with where it stands."""
    if isinstance(content, Mapping) and any(key in content for key in LISTS):
        lists = {key: content[key] for key in LISTS if key in content}
    elif isinstance(content, list):
        lists = {"policy": content}
    else:
        return [[(str(path), content)]]
    for key, values in lists.items():
        if not isinstance(values, list) or not values:
            raise PolicyError(f"{path}: {key} holds no policy; list at least one with id, title and rule")
    return [[(f"{path}: {key}[{index}]", value) for index, value in enumerate(values)] for key, values in lists.items()]


def _kind(value: Any) -> str:
    return "missing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
