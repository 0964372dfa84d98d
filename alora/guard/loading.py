"""Policies come and go while the guard serves: certified first, then switched in one step, then the old one drains."""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from alora.base.describe import DescribedBase
from alora.base.load import LoadedBase
from alora.bundle.battery import require_one_prefix
from alora.bundle.golden import disagreement, tolerance
from alora.bundle.read import Bundle, load_bundle
from alora.errors import BundleError, CheckFailed
from alora.guard.core import GuardCore
from alora.guard.reader import Overloaded, Reader, Reading, Served
from alora.guard.serving_set import FILE, Entry, ServingSet, Stamp, serving_set_of
from alora.prompt.parts import Prefix
from alora.wire.native import GuardRequest, Stage

_logger = logging.getLogger("alora.guard")
_PAUSE_S = 5.0  # before the next try to follow the file
_OURS = GuardRequest(messages=[])  # without salt or priority


class Loader:
    """Keeps a guard at what the serving set says.

    Args:
        base: what the engine computes with; every bundle is checked against it.
        dtype: what the engine computes in.
        bundles: served from the start; all in folders below the serving set's root.
    """

    def __init__(
        self,
        guard: GuardCore,
        reader: Reader,
        base: LoadedBase | DescribedBase,
        dtype: str,
        bundles: Sequence[Bundle],
        serving_set: ServingSet,
    ) -> None:
        self._guard, self._reader, self._base, self._dtype, self._set = guard, reader, base, dtype, serving_set
        self._bundles = bundles
        self._ready, self._again = False, math.inf
        self.trouble: str | None = "the policies are not certified yet"
        self._entries = tuple(map(self._given, bundles))
        self._stamp: Stamp = None
        self._changing = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def refusal(self) -> str | None:
        """Why nothing is served; None once the given bundles and the file's set were certified."""
        return None if self._ready else self.trouble

    def remark(self) -> str | None:
        """What to say at the start where the file names other adapters than were given."""
        return self._set.remark(self._bundles)

    def poll(self) -> None:
        """Begin to follow the file, if it was replaced (costs one ``stat``) or it is time to try again."""
        if self._refreshing is not None and not self._refreshing.done():
            return
        if self._set.stamp != self._stamp or time.monotonic() >= self._again:
            self._refreshing = asyncio.create_task(self.follow())

    async def follow(self) -> None:
        """Serve what the file says, or what was given where there is none.

        Until this has succeeded once, nothing is served and :attr:`refusal` says why: a set that was PUT before a
        restart must not be lost. After that, a failure keeps the set in service, and :attr:`trouble` says why the file
        is not followed.
        """
        async with self._changing:
            stamp = self._set.stamp
            if stamp == self._stamp and self.trouble is None:  # this process wrote it
                return
            self._stamp = stamp
            try:
                if not self._ready:
                    await self._certify_given()
                if stamp is not None:
                    await self._switch(await asyncio.to_thread(self._set.read))
            except Exception as error:
                said = "the serving set was replaced, and is not followed" if self._ready else "the guard is not served"
                self.trouble = f"{said}: {str(error) or type(error).__name__}"
                self._again = time.monotonic() + _PAUSE_S
                _logger.error("%s; next try in %d s", self.trouble, _PAUSE_S)
            else:
                self._is_followed()

    def _is_followed(self) -> None:
        self._ready, self.trouble, self._again = True, None, math.inf

    async def _certify_given(self) -> None:
        served = {item.name: item for item in self._guard.served}
        asked = [(served[bundle.served_name], bundle) for bundle in self._bundles]
        try:
            await self._certify(asked, rows=1)
        except Overloaded:  # the engine queues fewer requests than there are policies
            for pair in asked:
                await self._certify([pair], rows=1)

    async def put(self, policy: str, bundle: str, stage: Stage, tags: tuple[str, ...] | None = None) -> Served:
        """Serve a bundle as ``policy``, in place of the one that is served under this id and stage, whose tags it keeps
        where ``tags`` is None.

        Raises:
            BundleError: the folder is none, the bundle is damaged, another policy's, or made for another base.
            CheckFailed: its golden rows come out otherwise.
        """
        async with self._changing, self._set.alone():
            found = await asyncio.to_thread(load_bundle, self._set.folder(bundle))
            entry = replace(_entry(found, bundle, stage), policy=policy)
            with self._guard.holding(entry.name):
                entries = {(item.policy, item.stage): item for item in await self._current()}
                before = entries.get((policy, stage)) or entries.get((policy, "live"))
                kept = before.tags if before is not None else ()
                entries[policy, stage] = entry = replace(entry, tags=kept if tags is None else tags)
                shadow = entries.get((policy, "shadow"))
                if stage == "live" and shadow is not None and shadow.version == entry.version:  # promoted
                    del entries[policy, "shadow"]
                _require_live(tuple(entries.values()))
                served = await self._certified(entry, found)
                await self._switch(tuple(entries.values()), served, write=True)
                return served

    async def delete(self, policy: str, stage: Stage | None = None) -> None:
        """Stop serving ``policy``, in ``stage`` or altogether; BundleError where it is not served, or is the last."""
        async with self._changing, self._set.alone():
            current = await self._current()
            kept = tuple(item for item in current if item.policy != policy or stage not in (None, item.stage))
            if len(kept) == len(current):
                raise BundleError(f"{policy[:80]} is not served" + (f" as {stage}" if stage else ""))
            if not any(item.stage == "live" for item in kept):
                raise BundleError(f"{policy} is the only live policy; stop the server instead")
            _require_live(kept)
            await self._switch(kept, write=True)

    async def _current(self) -> tuple[Entry, ...]:
        """What a change is made to: the file's set, which another process may have replaced a moment ago."""
        return self._entries if self._set.stamp is None else await asyncio.to_thread(self._set.read)

    async def _switch(self, entries: tuple[Entry, ...], *certified: Served, write: bool = False) -> None:
        """Certify what is neither served nor among ``certified``, then serve exactly ``entries``, which are in the file
        by then. What does not come to be served is unloaded."""
        with self._guard.holding(*(entry.name for entry in entries)):
            known = {item.version: item for item in (*self._guard.served, *self._guard.shadows, *certified)}
            read = {(item.version, item.bundle) for item in self._entries}
            fresh = {item.version for item in certified}
            wanted = [
                replace(known[entry.version], stage=entry.stage, tags=entry.tags)
                if entry.version in fresh or (entry.version, entry.bundle) in read
                else await self._by_folder(entry, known.get(entry.version))
                for entry in entries
            ]
            if write:
                self._stamp = self._set.write(entries)
                self._is_followed()
            self._entries = entries
            self._guard.serve(wanted)

    async def _by_folder(self, entry: Entry, known: Served | None) -> Served:
        """What ``entry`` serves, by its folder, which is all that a restart has; ``known`` is served already."""
        bundle = await asyncio.to_thread(load_bundle, self._set.folder(entry.bundle))
        if known is None:
            return await self._certified(entry, bundle)
        _require_bundle_of(entry, bundle)
        return replace(known, stage=entry.stage, tags=entry.tags)

    async def _certified(self, entry: Entry, bundle: Bundle) -> Served:
        """Load ``bundle``, which must be that of ``entry``, and compare its golden rows; also where its weights are
        loaded already, for they are not all of it."""
        _require_bundle_of(entry, bundle)
        require_one_prefix(self._bundles[0], bundle)
        await asyncio.to_thread(bundle.check_base, self._base)
        served = Served.of(bundle, entry.stage, entry.tags)
        if entry.name not in {item.name for item in (*self._guard.served, *self._guard.shadows)}:
            await self._reader.load(served, bundle)
        await self._certify([(served, bundle)])
        return served

    async def _certify(self, asked: Sequence[tuple[Served, Bundle]], rows: int | None = None) -> None:
        """Ask the engine for the golden rows, ``rows`` of each at most, as it serves them: one reading a conversation.
        CheckFailed names every policy that answers otherwise."""
        answers: list[dict[int, Reading]] = [{} for _ in asked]
        together = await asyncio.to_thread(self._together, [bundle for _, bundle in asked], rows)
        for prefix, of_prefix in together.items():
            async for reading in self._reader.read(prefix, [asked[policy][0] for policy, _ in of_prefix], _OURS):
                policy, number = of_prefix[reading.index]
                answers[policy][number] = reading
        wrong = [self._fault(*pair, rows, given) for pair, given in zip(asked, answers, strict=True)]
        if any(wrong):
            raise CheckFailed("; ".join(filter(None, wrong)))

    def _together(self, bundles: Sequence[Bundle], rows: int | None) -> dict[Prefix, list[tuple[int, int]]]:
        """Golden rows as (bundle, row), by the prefix that they share."""
        together = defaultdict[Prefix, list[tuple[int, int]]](list)
        for policy, bundle in enumerate(bundles):
            renderer = bundle.renderer(self._base)
            for number, row in enumerate(bundle.golden[:rows]):
                together[renderer.prefix(row.conversation)].append((policy, number))
        return together

    def _fault(self, served: Served, bundle: Bundle, rows: int | None, given: dict[int, Reading]) -> str | None:
        """What is wrong with a policy's answers to its golden rows."""
        golden = bundle.golden[:rows]
        if not golden:
            return f"{bundle.folder.name} stores no golden rows; export it again with export.golden_rows=8"
        if error := next((reading.error for reading in given.values() if reading.error is not None), None):
            return f"{served.name}: {error}"
        if len(given) != len(golden):
            return f"{served.name}: the engine gave no answer"
        bound = tolerance(self._dtype, bundle.manifest.base.dtype)
        far = disagreement(golden, [given[number].logits for number in range(len(golden))])
        return None if far <= bound else f"{served.name}: golden rows differ by {far:.2g}, above {bound}"

    def _given(self, bundle: Bundle) -> Entry:
        return _entry(bundle, str(Path(bundle.folder).absolute().relative_to(self._set.root.absolute())))


def _require_live(entries: Sequence[Entry]) -> None:
    live = {item.policy for item in entries if item.stage == "live"}
    if alone := next((item.policy for item in entries if item.policy not in live), None):
        raise BundleError(
            f"{alone} has a shadow and nothing live, and a shadow alone is never asked; delete both, or put it live"
        )


def _require_bundle_of(entry: Entry, bundle: Bundle) -> None:
    if bundle.policy.id != entry.policy:
        raise BundleError(f"{entry.bundle} answers policy {bundle.policy.id!r}, not {entry.policy[:80]!r}")
    if (bundle.manifest.adapter_digest, bundle.manifest.sha256) != (entry.digest, entry.manifest):
        raise BundleError(
            f"{entry.bundle} has changed since it was loaded; load the policy again, or, if the guard serves nothing "
            f"yet, put the old files back, or delete {FILE}, which forgets every PUT and DELETE, and restart it"
        )


def _entry(bundle: Bundle, folder: str, stage: Stage = "live") -> Entry:
    manifest = bundle.manifest
    return Entry(manifest.policy.id, folder, manifest.adapter_digest, manifest.sha256, stage)


def make_guard(
    bundles: Sequence[Bundle],
    base: LoadedBase | DescribedBase,
    dtype: str,
    reader: Reader,
    longest: int | None,
    root: str | None = None,
) -> tuple[GuardCore, Loader]:
    """A guard of bundles that were checked on ``base``, and what changes it.

    Args:
        longest: tokens of a prompt that the engine takes, or None.
        root: the folder below which bundles are loaded while it serves; None: the one that holds ``bundles``.
    """
    guard = GuardCore([Served.of(bundle) for bundle in bundles], bundles[0].renderer(base), reader, longest)
    serving_set = serving_set_of([bundle.folder for bundle in bundles], root)
    return guard, Loader(guard, reader, base, dtype, bundles, serving_set)
