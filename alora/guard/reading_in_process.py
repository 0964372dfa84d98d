"""Reading in this process by the packed scorer: laptops, notebooks, tests."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from alora.adapter.folder import AdapterWeights
from alora.base.load import LoadedBase
from alora.bundle.read import Bundle
from alora.errors import BundleError, first_line
from alora.guard.reader import Reading, Served
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix
from alora.wire.native import GuardRequest

_Weights = dict[str, AdapterWeights]


class PackedReader:
    """All policies in one pass, one conversation after another. A pass that nobody waits for still runs to its end."""

    def __init__(self, base: LoadedBase, bundles: Sequence[Bundle]) -> None:
        self._base = base
        self._weights = {Served.of(bundle).name: bundle.weights for bundle in bundles}
        self._thread = ThreadPoolExecutor(1, "packed")
        self._scorer = Scorer(base, list(self._weights.values()))

    async def read(
        self, prefix: Prefix, asked: Sequence[Served], request: GuardRequest
    ) -> AsyncGenerator[Reading, None]:
        """See :class:`~alora.guard.reader.Reader`; nothing is kept from one request to the next, so no salt counts."""
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._thread, self._score, prefix, asked)
        for index, logits_L in enumerate(rows):
            # The first policy paid for the prefix.
            yield Reading(index, logits_L.tolist(), len(prefix.token_ids) if index else 0)

    def require_running(self) -> None:
        """See :class:`~alora.guard.reader.Reader`; it lives as long as this process."""

    def trouble(self) -> str | None:
        """See :class:`~alora.guard.reader.Reader`."""

    async def load(self, served: Served, bundle: Bundle) -> None:
        try:
            await self._change(lambda weights: {**weights, served.name: bundle.weights})
        except (RuntimeError, MemoryError) as error:  # torch's own, where memory is out
            raise BundleError(f"the weights of {served.name} cannot be loaded: {first_line(error)}") from error

    async def unload(self, name: str) -> None:
        await self._change(lambda weights: {other: kept for other, kept in weights.items() if other != name})

    def _score(self, prefix: Prefix, asked: Sequence[Served]) -> list[torch.Tensor]:
        indices = {name: index for index, name in enumerate(self._weights)}
        return self._scorer.label_logits(prefix, [it.suffix for it in asked], [indices[it.name] for it in asked])

    async def _change(self, change: Callable[[_Weights], _Weights]) -> None:
        """In the one thread that scores, so between two passes and after every earlier change."""

        def run() -> None:
            weights = change(self._weights)
            scorer = Scorer(self._base, list(weights.values()))  # or what is served stays
            self._scorer.close()
            self._scorer, self._weights = scorer, weights

        await asyncio.get_running_loop().run_in_executor(self._thread, run)
