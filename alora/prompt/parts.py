"""The parts of a prompt as token ids: what all policies share, and what belongs to one."""

from collections.abc import Sequence
from dataclasses import dataclass

from alora.activation import last_occurrence
from alora.errors import RenderError

INVOCATION = "Policy check:"


@dataclass(frozen=True)
class Truncation:
    """What a conversation lost to fit: tokens of the prefix before and after, and from where they were taken.
    ``tokens_before`` leaves out what a conversation beyond :func:`~alora.prompt.truncate.bounded` lost first."""

    tokens_before: int
    tokens_after: int
    taken_from: str


@dataclass(frozen=True)
class Prefix:
    """The part of a prompt that every policy shares; computed by the base alone."""

    token_ids: tuple[int, ...]
    truncation: Truncation | None = None


@dataclass(frozen=True)
class Suffix:
    """The part of a prompt that belongs to one policy; all that its adapter touches.

    ``token_ids`` begins with ``invocation_ids``, and its last token is the position whose next-token logits answer.
    ``label_token_ids[i]`` is the token of the policy's label ``i``.

    Raises:
        RenderError: PEFT's search for ``invocation_ids`` would find another index than 0.
    """

    token_ids: tuple[int, ...]
    invocation_ids: tuple[int, ...]
    label_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        start = last_occurrence(self.token_ids, self.invocation_ids) if self.invocation_ids else None
        if start != 0:
            raise RenderError(
                f"the suffix's {len(self.token_ids)} tokens hold the invocation {list(self.invocation_ids)} last at "
                f"{start}, not at 0, so PEFT would start the adapter elsewhere; "
                f"take {INVOCATION!r} out of the policy's title and rule"
            )


@dataclass(frozen=True)
class Prompt:
    """``token_ids = prefix + suffix`` and ``activation_index = len(prefix)``, by construction."""

    prefix: Prefix
    suffix: Suffix

    @property
    def activation_index(self) -> int:
        """Index of the first adapted token, counted from the start."""
        return len(self.prefix.token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prefix.token_ids + self.suffix.token_ids


@dataclass(frozen=True)
class Question:
    """One conversation and the adapters that answer about it: their numbers in a scorer, one suffix each. Of a
    conversation in windows there are several; ``more`` are yet to come."""

    prefix: Prefix
    suffixes: Sequence[Suffix]
    asked: Sequence[int]
    more: int = 0
