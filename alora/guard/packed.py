"""Reading in this process by the packed scorer: laptops, notebooks, tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from alora.guard.reader import Reading, Served
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix

if TYPE_CHECKING:
    from alora.base.load import LoadedBase
    from alora.bundle.read import Bundle


class PackedReader:
    """All policies in one pass, one conversation after another. A pass that nobody waits for still runs to its end."""

    def __init__(self, base: LoadedBase, bundles: Sequence[Bundle]) -> None:
        self._scorer = Scorer(base, [bundle.weights for bundle in bundles])
        self._places = {Served.of(bundle).name: place for place, bundle in enumerate(bundles)}
        self._thread = ThreadPoolExecutor(1, "packed")

    async def read(
        self, prefix: Prefix, asked: Sequence[Served], salt: str | None = None, priority: int = 0
    ) -> AsyncGenerator[Reading, None]:
        """See :class:`~alora.guard.reader.Reader`; nothing is kept from one request to the next, so no salt counts."""
        suffixes = [item.suffix for item in asked]
        places = [self._places[item.name] for item in asked]
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._thread, self._scorer.label_logits, prefix, suffixes, places)
        for index, logits_L in enumerate(rows):
            # The first policy paid for the prefix.
            yield Reading(index, logits_L.tolist(), len(prefix.token_ids) if index else 0)
