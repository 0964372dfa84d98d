"""Policies come and go while the guard serves: certified first, then switched in one step, then the old one drains."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from alora.base.load import LoadedBase
from alora.base.stored import DescribedBase
from alora.bundle.battery import require_one_prefix
from alora.bundle.golden import disagreement, tolerance
from alora.bundle.read import Bundle
from alora.errors import BundleError, CheckFailed
from alora.guard import exported_metrics as metrics
from alora.guard.admission import Admission
from alora.guard.core import GuardCore
from alora.guard.reader import Overloaded, Reader, Reading, Served
from alora.guard.served_folders import ServedFiles, require_bundle_of
from alora.guard.serving_set import Entry, ServingSet, Stamp, serving_set_of
from alora.guard.verdicts import logger
from alora.prompt.parts import Prefix
from alora.wire.native import Action, GuardRequest

_PAUSE_S = 5.0  # before the next try to follow the file
_OURS = GuardRequest(messages=[])  # without salt or priority


class Loader:
    """Keeps a guard at what the serving set says.

    The engine computes with ``base`` in ``dtype``, and every bundle is checked against it. ``bundles`` are served from
    the start, and lie below the serving set's root.
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
        root = serving_set.root.absolute()
        self._entries = tuple(_entry(item, str(item.folder.absolute().relative_to(root))) for item in bundles)
        self._files = ServedFiles(serving_set, self._entries)
        self._stamp: Stamp = None
        self._changing = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def refusal(self) -> str | None:
        """Why nothing is served; None once the given bundles and the file's set were certified."""
        return None if self._ready else self.trouble

    async def watch(self) -> None:
        """Follow the file, and look at what is served, while nobody asks."""
        while True:
            self.poll()
            await self.look()
            await asyncio.sleep(_PAUSE_S)

    async def look(self) -> str | None:
        """What whoever runs the server should look at: the file is not followed, a folder is not what was loaded."""
        lost = await asyncio.to_thread(self._files.faults, self._entries)
        said = "; ".join(filter(None, (self.trouble, self._guard.trouble(), *lost))) or None
        metrics.TROUBLE.set(said is not None)
        return said

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
                logger.error("%s; next try in %d s", self.trouble, _PAUSE_S)
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

    async def put(
        self, policy: str, bundle: str | None, action: Action | None, tags: tuple[str, ...] | None = None
    ) -> Served:
        """Serve a bundle as ``policy``, in place of the one of its id that is reported, or of the one that is logged.
        What is None stays as it is; a version that is served already changes its action.

        BundleError where the bundle is damaged, another policy's or of another base, CheckFailed by its golden rows.
        """
        async with self._changing, self._set.alone():
            entries = {item.slot: item for item in await self._current()}
            before = entries.get((policy, False)) or entries.get((policy, True))
            action = action or (before.action if before is not None else "block")
            if bundle is not None:
                found = await asyncio.to_thread(self._files.load, bundle)
                entry = replace(_entry(found, bundle, action), policy=policy)
            elif before is not None:
                found, entry = None, replace(before, action=action)
            else:
                raise BundleError(f"{policy[:80]} is not served; name its bundle")
            with self._guard.holding(entry.name):
                before = entries.get(entry.slot) or before
                entry = replace(entry, tags=tags if tags is not None else before.tags if before is not None else ())
                others = {at: one for at, one in entries.items() if one.version != entry.version or at == entry.slot}
                certified = () if found is None else (await self._certified(entry, found),)
                await self._switch(tuple((others | {entry.slot: entry}).values()), *certified, write=True)
                return next(item for item in self._guard.known if item.version == entry.version)

    async def delete(self, policy: str, action: Action | None = None) -> None:
        """Stop serving ``policy``, or its version of an action; BundleError where it is not served, or is the last."""
        async with self._changing, self._set.alone():
            current = await self._current()
            kept = tuple(item for item in current if item.policy != policy or action not in (None, item.action))
            if len(kept) == len(current):
                raise BundleError(f"{policy[:80]} is not served" + (f" with action {action}" if action else ""))
            if not kept:
                raise BundleError(f"{policy} is the only policy; stop the server instead")
            await self._switch(kept, write=True)

    async def _current(self) -> tuple[Entry, ...]:
        """What a change is made to: the file's set, which another process may have replaced a moment ago."""
        return self._entries if self._set.stamp is None else await asyncio.to_thread(self._set.read)

    async def _switch(self, entries: tuple[Entry, ...], *certified: Served, write: bool = False) -> None:
        """Certify what is neither served nor among ``certified``, then serve exactly ``entries``, which are in the file
        by then. What does not come to be served is unloaded."""
        with self._guard.holding(*(entry.name for entry in entries)):
            known = {item.version: item for item in (*self._guard.known, *certified)}
            read = {(item.version, item.bundle) for item in self._entries}
            fresh = {item.version for item in certified}
            wanted = [
                replace(known[entry.version], action=entry.action, tags=entry.tags)
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
        bundle = await asyncio.to_thread(self._files.load, entry.bundle)
        if known is None:
            return await self._certified(entry, bundle)
        require_bundle_of(entry, bundle)
        return replace(known, action=entry.action, tags=entry.tags)

    async def _certified(self, entry: Entry, bundle: Bundle) -> Served:
        """Load ``bundle``, which must be that of ``entry``, and compare its golden rows; also where its weights are
        loaded already, for they are not all of it."""
        require_bundle_of(entry, bundle)
        require_one_prefix(self._bundles[0], bundle)
        await asyncio.to_thread(bundle.check_base, self._base)
        served = Served.of(bundle, entry.action, entry.tags)
        if entry.name not in {item.name for item in self._guard.known}:
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


def _entry(bundle: Bundle, folder: str, action: Action = "block") -> Entry:
    manifest = bundle.manifest
    return Entry(manifest.policy.id, folder, manifest.adapter_digest, manifest.sha256, action)


def make_guard(
    bundles: Sequence[Bundle],
    base: LoadedBase | DescribedBase,
    dtype: str,
    reader: Reader,
    longest: int | None,
    admission: Admission | None = None,
    root: str | None = None,
) -> tuple[GuardCore, Loader]:
    """A guard of bundles that were checked on ``base``, and what changes it.

    ``longest`` is the most tokens of a prompt that the engine takes; ``root`` the folder below which bundles are loaded
    while it serves (None: the one that holds ``bundles``).
    """
    served = [Served.of(bundle) for bundle in bundles]
    guard = GuardCore(served, bundles[0].renderer(base), reader, longest, admission)
    serving_set = serving_set_of([bundle.folder for bundle in bundles], root)
    return guard, Loader(guard, reader, base, dtype, bundles, serving_set)
