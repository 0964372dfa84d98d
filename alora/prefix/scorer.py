"""Verdict logits for P policies in one pass: the packed forward without gradient."""

from collections.abc import Sequence
from itertools import islice
from typing import Self

import torch

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterWeights
from alora.base.load import LoadedBase
from alora.errors import AdapterError
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair, PrefixKV, passes
from alora.prefix.store import PrefixStore
from alora.prompt.render import Prefix, Question, Suffix


class Scorer:
    """P adapters on one base, ready to score conversations.

    The base is computed once per conversation; the suffixes run behind it in passes of at most ``max_suffix_tokens``
    tokens, which bounds memory whatever P is. ``store`` keeps prefix KV from one call to the next. Use as a context
    manager, or call :meth:`close`, to free the base.

    Raises:
        AdapterError: no adapter, or one that belongs to another base.
    """

    def __init__(
        self,
        base: LoadedBase,
        adapters: Sequence[AdapterWeights],
        max_suffix_tokens: int = 4096,
        store: PrefixStore | None = None,
    ) -> None:
        if not adapters:
            raise AdapterError("nothing to score with: no adapter was given")
        self._adapters, self._limit, self._store = tuple(adapters), max_suffix_tokens, store
        self._closed = False
        # vLLM runs adapters in the base's dtype, so a verdict here must too; float32 and wider bases keep theirs.
        self._model = PackedModel(base.model, Bank(base.model, adapters, dtype=base.model.dtype)).eval()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the adapters off the base; nothing is scored afterwards, for the base would answer in their name."""
        self._closed = True
        self._model.bank.release()

    def label_logits(
        self, prefix: Prefix, suffixes: Sequence[Suffix], asked: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """Logits ``[L]`` of each policy's labels, one suffix per adapter, in their order, on CPU.

        ``asked`` are the indices of the adapters that answer, one per suffix; all of them where it is None.
        """
        asked = range(len(self._adapters)) if asked is None else asked
        return self.score_rows([Question(prefix, suffixes, asked)])[0]

    def score_rows(self, questions: Sequence[Question]) -> list[list[torch.Tensor]]:
        """:meth:`label_logits` of several conversations, packed together; one list for each."""
        if self._closed:
            raise AdapterError("this scorer is closed, and its adapters are off the base; make another one")
        pairs, shared = [], PrefixCache(self._model, self._store)
        with torch.inference_mode():
            for question in questions:
                if len(question.suffixes) != len(question.asked):
                    raise ValueError(f"{len(question.suffixes)} suffixes for {len(question.asked)} adapters")
                for policy, suffix in zip(question.asked, question.suffixes, strict=True):
                    activated = self._adapters[policy].spec.activated
                    index, own = shared.index(question.prefix.token_ids, suffix.token_ids, activated)
                    pairs.append(Pair(index, policy, own, suffix.label_token_ids))
            rows: list[torch.Tensor] = []
            prefixes = shared.compute()
            for part in passes(pairs, lambda pair: len(pair.suffix_ids), self._limit):
                rows += self._model.label_logits(prefixes, part).cpu()
        answers = iter([row[: len(pair.label_token_ids)] for row, pair in zip(rows, pairs, strict=True)])
        return [list(islice(answers, len(question.suffixes))) for question in questions]


class PrefixCache:
    """Prefix KV of one batch of prompts, each distinct prefix computed once, or taken from ``store``."""

    def __init__(self, model: PackedModel, store: PrefixStore | None = None) -> None:
        self._model, self._store = model, PrefixStore(0, model.device) if store is None else store
        self._indices: dict[tuple[int, ...], int] = {}

    def index(
        self, prefix_ids: tuple[int, ...], suffix_ids: tuple[int, ...], activated: bool
    ) -> tuple[int, tuple[int, ...]]:
        """Index of the prefix in what :meth:`compute` returns, and the ids behind it.

        A standard LoRA adapts every token, so all of its prompt stands behind the empty prefix.
        """
        if not activated:
            prefix_ids, suffix_ids = (), prefix_ids + suffix_ids
        return self._indices.setdefault(prefix_ids, len(self._indices)), suffix_ids

    def compute(self) -> list[PrefixKV | None]:
        """The KV of every prefix that :meth:`index` was given; None of the empty one."""
        found = self._store.get(self._indices, self._model.run_prefixes)
        return [found.get(ids) for ids in self._indices]
