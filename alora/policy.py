"""A policy: one rule with its ordered labels, and the word that stands for each label."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alora.errors import PolicyError

DEFAULT_LABELS: Mapping[str, str] = MappingProxyType({"violation": "Yes", "ok": "No"})


@dataclass(frozen=True)
class Policy:
    """One guardrail rule.

    ``labels`` are ordered and ``labels[0]`` is the positive one, whose probability a verdict reports.
    ``answers[i]`` is the word that the model answers for ``labels[i]``; it must be a single token in context, which
    :class:`alora.render.Renderer` checks on the tokenizer at hand.
    """

    id: str
    title: str
    rule: str
    labels: tuple[str, ...] = tuple(DEFAULT_LABELS)
    answers: tuple[str, ...] = tuple(DEFAULT_LABELS.values())

    def __post_init__(self) -> None:
        for name in ("id", "title"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise PolicyError(f"policy {self.id!r}: '{name}' is {value!r}; give it a text")
        if len(self.labels) < 2:
            raise PolicyError(f"policy {self.id!r}: {len(self.labels)} label(s); a classifier needs at least two")
        for name, values in (("labels", self.labels), ("answer words", self.answers)):
            if len(set(values)) != len(values):
                raise PolicyError(f"policy {self.id!r}: {name} {list(values)} repeat; each must be its own")
        if len(self.answers) != len(self.labels):
            raise PolicyError(f"policy {self.id!r}: {len(self.answers)} answer words for {len(self.labels)} labels")

    @property
    def positive(self) -> str:
        """The label whose probability a verdict reports."""
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
        }
