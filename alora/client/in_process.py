"""A battery in this process: policies on one base, :func:`load`-ed once and asked as often as you like."""

import os
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Self, overload

from alora.base.limits import require_room_for
from alora.base.load import load_base
from alora.base.location import base_location
from alora.bundle.artifact import open_artifact
from alora.bundle.read import Bundle, check_bases, load_bundle
from alora.client.engine import Engine
from alora.config.schema import BaseSettings, DataSettings
from alora.data.conversation import Conversation, LabelledConversation, parse_conversation
from alora.data.files import kind
from alora.errors import AdapterError, AloraError, ConfigError, DataError
from alora.evaluation.predict import MAX_TOKENS, answers
from alora.prefix.scorer import Scorer
from alora.prompt.render import Question
from alora.verdict import Verdicts, make_verdict

Messages = Conversation | LabelledConversation | Sequence[Mapping[str, Any]] | Mapping[str, Any]
# Begin notes by which no turn is lost.
_NO_TURNS = "role ", "label ", "labels ", "id ", "'system' is read as ", "a turn without content "


class Battery:
    """Policies on one base in this process, made by :func:`load`: a context manager, or :meth:`close` it.

    ``policies`` are their ids. Threads may share it; one computes at a time.
    """

    def __init__(
        self, bundles: Sequence[Bundle], settings: BaseSettings, scorer: str, max_tokens: int = MAX_TOKENS
    ) -> None:
        if scorer not in ("packed", "vllm"):
            raise ConfigError(f"scorer is {scorer!r}; give packed or vllm")
        base = load_base(settings)
        check_bases(bundles, base)
        self._bundles, self._renderer, self._model = bundles, bundles[0].renderer(base), base.model
        self.policies = tuple(bundle.policy.id for bundle in bundles)
        self._computing, self._closed, self._process, self._most = Lock(), False, os.getpid(), max_tokens
        if scorer == "vllm":
            self._scorer = Engine.of(bundles, base, base_location(settings))
        else:
            self._scorer = Scorer(base, [bundle.weights for bundle in bundles])

    def score(self, messages: Messages) -> Verdicts:
        """Every policy's verdict on one conversation, from one pass over it.

        ``messages`` are a list of ``{"role": ..., "content": ...}``, or a row with such a list. DataError or
        RenderError where they are no conversation, ConfigError where it is longer than the base takes.
        """
        return next(self._each([("", messages)]))

    @overload
    def score_many(self, rows: Iterable[Messages]) -> Iterator[Verdicts]: ...
    @overload
    def score_many(self, rows: Iterable[Messages], *, errors: Literal["return"]) -> Iterator[Verdicts | AloraError]: ...
    def score_many(self, rows: Iterable[Messages], *, errors: str = "raise") -> Iterator[Any]:
        """:meth:`score` of each row, in order. Rows are computed together, which moves a probability by rounding alone
        (:mod:`alora.evaluation.predict` says how far).

        With ``errors="return"`` a row without a verdict gives its error, and scoring goes on; else it is raised, and
        names the row (``row 17: ...``).
        """
        if errors not in ("raise", "return"):
            raise ConfigError(f"errors is {errors!r}; give raise or return")
        return self._each(((f"row {number}", row) for number, row in enumerate(rows, 1)), errors)

    def _each(self, rows: Iterable[tuple[str, Messages]], errors: str = "raise") -> Iterator[Any]:
        names: deque[str | AloraError] = deque()  # of the rows whose answers are to come, in order

        def ask() -> Iterator[Question]:
            for where, row in rows:
                try:
                    name, questions = self._questions(row, where)
                except AloraError as error:
                    if errors == "raise":
                        raise
                    names.append(error)
                    continue
                names.append(name)
                yield from questions

        def compute(batch: Sequence[Question]) -> Sequence[Sequence[Iterable[Any]]]:
            if os.getpid() != self._process:  # torch's threads stay behind at a fork, and a kernel would wait for them
                raise ConfigError(
                    "this battery was loaded in another process, and a forked one cannot compute with it; call "
                    "alora.load in the process that scores, such as a pool's initializer"
                )
            with self._computing:
                if self._closed:  # without its adapters the base would answer in their name
                    raise ConfigError("this battery is closed; score before close(), and read score_many inside `with`")
                return self._scorer.score_rows(batch)

        for windows, logits_PL in answers(compute, ask(), self._most):
            while isinstance(name := names.popleft(), AloraError):
                yield name
            try:
                yield self._verdicts(name, windows, logits_PL)
            except AdapterError as error:  # the adapter overflowed on it
                if errors == "raise":
                    raise
                yield error
        yield from names

    def _questions(self, messages: Messages, where: str) -> tuple[str, list[Question]]:
        """The conversation's id, and one question per window to every policy; ``where``, if not empty, opens error
        messages."""
        where = messages.where if isinstance(messages, LabelledConversation) else where
        conversation = _conversation_in(messages, where or "the conversation", self._bundles[0].manifest.reading)
        try:
            questions = self._renderer.questions(conversation, [bundle.suffix for bundle in self._bundles])
            for question in questions:
                require_room_for(self._model, question.prefix, question.suffixes)
        except AloraError as error:
            raise type(error)(f"{where}: {error}" if where else str(error)) from error
        return conversation.id, questions

    def _verdicts(self, name: str, windows: Sequence[Question], logits_PL: Iterable[Iterable[Any]]) -> Verdicts:
        verdicts = [
            make_verdict(bundle.policy, list(map(float, logits_L)), bundle.calibration, bundle.manifest.adapter_digest)
            for bundle, logits_L in zip(self._bundles, logits_PL, strict=True)
        ]
        lost = [window.prefix.truncation for window in windows]
        tokens = sum(len(window.prefix.token_ids) for window in windows)
        return Verdicts(name, tuple(verdicts), tokens, next(filter(None, lost), None), len(windows))

    def close(self) -> None:
        """Free the base, once nobody computes; what is asked afterwards is refused."""
        with self._computing:
            if not self._closed:
                self._closed = True
                self._scorer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load(
    artifact: str | Path | Sequence[str | Path],
    *,
    base: str | Path | BaseSettings | None = None,
    scorer: Literal["packed", "vllm"] = "packed",
    policies: Sequence[str] = (),
    max_tokens: int = MAX_TOKENS,
) -> Battery:
    """Load bundles and their base into this process.

    Args:
        artifact: a bundle, a run folder, a battery, ``user/repository`` on the hub (``@revision``), or several of them.
        base: the base's folder or hub id; needed only where it was a local folder that has moved.
        scorer: what computes: alora's packed forward, or vLLM in this process.
        policies: of a battery, the ids to load; empty: all.
        max_tokens: of conversations that ``score_many`` computes together, which bounds memory.
    """
    return Battery(*open_artifact(artifact, base, policies, load_bundle), scorer, max_tokens)


def _conversation_in(messages: Messages, where: str, reading: DataSettings) -> Conversation:
    """The conversation that a caller means by ``messages``; ``where`` names it in errors. A warning says which turns of
    a dictionary are not read, or read from another key than ``messages``."""
    if isinstance(messages, LabelledConversation):
        return messages.conversation
    if isinstance(messages, Conversation):
        return messages
    if isinstance(messages, str) or not isinstance(messages, Iterable):
        raise DataError(f'{where} is {kind(messages)}; give a list of {{"role": ..., "content": ...}}')
    row, notes = messages if isinstance(messages, Mapping) else {"messages": list(messages)}, Counter[str]()
    conversation = parse_conversation(row, where, reading, notes)
    if said := [note for note in notes if not note.lower().startswith(_NO_TURNS) and "(data." not in note]:
        text = f"{'; '.join(said)}; give a list of messages, with every turn in it"
        warnings.warn(text, stacklevel=3)  # no row's number, so that a warning of many rows is shown once
    return conversation
