"""Conversation + policy → token ids, split where the adapter starts. The same code for training and serving."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Truncation:
    """What a conversation lost to fit: tokens before and after, and from where they were taken."""

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
    """

    token_ids: tuple[int, ...]
    invocation_ids: tuple[int, ...]
    label_token_ids: tuple[int, ...]


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
        """The whole prompt."""
        return self.prefix.token_ids + self.suffix.token_ids
