"""Questions to several policies about one conversation, and verdicts from the answers: what :mod:`alora.api` and the
clients of a server share.

Imports no torch.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from alora.bundle.battery import Read
from alora.bundle.named import read_bundles
from alora.config.paths import HUB_ID
from alora.config.schema import BaseSettings
from alora.data.cells import kind
from alora.data.conversation import Conversation, LabelledConversation, parse_conversation
from alora.errors import AloraError, ConfigError, DataError
from alora.prompt.render import Question, Renderer
from alora.verdict import Verdicts, make_verdict

Messages = Conversation | LabelledConversation | Sequence[Mapping[str, Any]] | Mapping[str, Any]
Artifact = str | Path | Sequence[str | Path]
Base = str | Path | BaseSettings | None
_NO_TURNS = "role ", "label ", "labels ", "id ", "'system' is read as "  # begin notes by which no turn is lost


class Policies(Generic[Read]):
    """Bundles on one base: makes questions to all of them, which ``check`` may refuse, and verdicts of their logits."""

    def __init__(
        self, bundles: Sequence[Read], renderer: Renderer, check: Callable[[Question], object] = lambda _: None
    ) -> None:
        self.bundles, self._renderer, self._check = bundles, renderer, check

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its policies, in the order of their verdicts."""
        return tuple(bundle.policy.id for bundle in self.bundles)

    def questions(self, messages: Messages, where: str) -> tuple[str, list[Question]]:
        """The conversation's id, and one question per window to every policy; ``where``, if not
        empty, opens error messages."""
        where = messages.where if isinstance(messages, LabelledConversation) else where
        conversation = conversation_in(messages, where or "the conversation")
        suffixes = [bundle.suffix for bundle in self.bundles]
        try:
            questions = self._renderer.questions(conversation, suffixes)
            for question in questions:
                self._check(question)
        except AloraError as error:
            raise type(error)(f"{where}: {error}" if where else str(error)) from error
        return conversation.id, questions

    def verdicts(self, name: str, windows: Sequence[Question], logits_PL: Iterable[Iterable[Any]]) -> Verdicts:
        """The verdicts from each policy's label logits."""
        pairs = zip(self.bundles, logits_PL, strict=True)
        verdicts = [
            make_verdict(bundle.policy, list(map(float, logits_L)), bundle.calibration, bundle.manifest.adapter_digest)
            for bundle, logits_L in pairs
        ]
        tokens, lost = (
            sum(len(window.prefix.token_ids) for window in windows),
            [window.prefix.truncation for window in windows],
        )
        return Verdicts(name, tuple(verdicts), tokens, next(filter(None, lost), None), len(windows))


def conversation_in(messages: Messages, where: str) -> Conversation:
    """The conversation that a caller means by ``messages``; ``where`` names it in errors. A warning says which turns of
    a dictionary are not read, or read from another key than ``messages``.

    Raises:
        DataError: it is none.
    """
    if isinstance(messages, LabelledConversation):
        return messages.conversation
    if isinstance(messages, Conversation):
        return messages
    if isinstance(messages, str) or not isinstance(messages, Iterable):
        raise DataError(f'{where} is {kind(messages)}; give a list of {{"role": ..., "content": ...}}')
    row, notes = messages if isinstance(messages, Mapping) else {"messages": list(messages)}, Counter[str]()
    conversation = parse_conversation(row, where, notes=notes)
    if said := [note for note in notes if not note.lower().startswith(_NO_TURNS)]:
        text = f"{'; '.join(said)}; give a list of messages, with every turn in it"
        warnings.warn(text, stacklevel=3)  # no row's number, so that a warning of many rows is shown once
    return conversation


def require_known(errors: str) -> None:
    """ConfigError for an ``errors`` that ``score_many`` does not know."""
    if errors not in ("raise", "return"):
        raise ConfigError(f"errors is {errors!r}; give raise or return")


def open_artifact(
    artifact: Artifact, base: Base, policies: Sequence[str], read: Callable[[Path], Read]
) -> tuple[list[Read], BaseSettings]:
    """What :func:`load` and the clients take as ``artifact``, as bundles; a hub id is fetched first."""
    from alora.bundle.hub import fetch_bundle  # a client in an environment without huggingface_hub imports this file

    names = map(str, [artifact] if isinstance(artifact, str | Path) else artifact)
    folders = [name if Path(name).exists() or not HUB_ID.fullmatch(name) else str(fetch_bundle(name)) for name in names]
    settings = base if isinstance(base, BaseSettings) else BaseSettings(source=None if base is None else str(base))
    return read_bundles(folders, settings, policies, read)
