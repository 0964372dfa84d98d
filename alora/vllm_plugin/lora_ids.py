"""Which adapter each LoRA id means, in the engine core.

Users know an adapter by a LoRA id and a path, and both can come to mean other weights. So the engine core copies the
files once, digests the copy, and gives it a number of its own; scheduler and workers know the copy and the number
alone. Other weights under an old id or path are another record, under another number, and a request keeps the record
with which it was accepted to its end, whatever happens to id, path and files meanwhile. Nothing is ever loaded that was
not digested, or replaced under a running request.
"""

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections import OrderedDict
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin.adapter_config import claims_alora
from alora.vllm_plugin.adapter_record import FIRST_NUMBER, AdapterRecord, read_record, stamp_of

KEPT = 256  # ids, at least: vLLM's server forgets an adapter without a word to the engine core
_FOLDER = "alora-copies-"
_GRACE = 60.0  # seconds in which a step that was sent may still load a copy that nobody holds any more


def _changed(name: str, path: str) -> AdapterError:
    return AdapterError(
        f"adapter {name!r}: the files in {path} changed after their weights were loaded; load the adapter again first "
        "(add_lora, or POST /v1/load_lora_adapter, with load_inplace), or better, write new weights to a new folder"
    )


def _lock(folder: str | Path) -> int | None:
    """A lock on a folder of copies that ends with the process, even one that is killed; None where another has it.

    It also keeps systemd-tmpfiles away from what lies in the folder.
    """
    try:
        own = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(own)
        return None
    return own


def _delete_abandoned() -> None:
    """Delete the copies of engine cores that were killed; not those of one that is just starting."""
    for folder in Path(tempfile.gettempdir()).glob(_FOLDER + "*"):
        own = _lock(folder)
        if own is not None:
            if os.fstat(own).st_mtime < time.time() - 60:  # a new folder has no lock for a moment
                shutil.rmtree(folder, ignore_errors=True)
            os.close(own)


class Records:
    """The adapters of one engine core, by the LoRA ids of its users. ``folder`` holds the copies and ends with it.

    Before :meth:`hold`, no worker knows a record: its copy is deleted with it, so a refused request leaves none. After
    :meth:`hold`, :meth:`sweep` deletes the copy, or a later ``hold`` does once the id was evicted and a grace period is
    over.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept  # ids
        _delete_abandoned()
        self.folder = tempfile.mkdtemp(prefix=_FOLDER)
        self._locked = _lock(self.folder)
        # Not atexit, which a forked engine core skips.
        Finalize(self, shutil.rmtree, (self.folder, True), exitpriority=0)
        self._by_id: OrderedDict[int, AdapterRecord] = OrderedDict()
        self._read: weakref.WeakValueDictionary[str, AdapterRecord] = weakref.WeakValueDictionary()
        self._copies: dict[str, weakref.ref[AdapterRecord]] = {}
        self._unheld: dict[str, float] = {}  # copies that nobody holds, and since when at the latest

    def of(self, lora_request: Any, digest: str | None = None) -> AdapterRecord:
        """The record of a LoRA request, which may ask for weights of ``digest``, whatever its id means to others.

        AdapterError for an id of another adapter, and for files with other weights than were accepted or asked for.
        Nothing is kept: the request may still be refused.
        """
        name, number, path = lora_request.lora_name, lora_request.lora_int_id, lora_request.lora_path
        known = self._by_id.get(number)
        if digest is not None:
            if known is not None and (known.path, known.digest) == (path, digest):
                return known  # whatever became of the files
            found = self.read(path)
            if found.digest != digest:
                raise AdapterError(f"adapter {name!r}: {path} holds other weights than are asked for")
            return found
        if known is None:
            return self.read(path)
        if known.path != path:
            raise AdapterError(
                f"adapter {name!r} asks for {path} under LoRA id {number}, but that id holds {known.path}; give every "
                "adapter an id of its own"
            )
        if known.unchanged() or not Path(known.folder).is_dir():
            return known  # the copy is there, whether or not the files still are
        try:  # a change that was refused before is not copied again for every request
            now = None if stamp_of(known.folder) == known.refused else self.read(known.path)
        except (AdapterError, OSError):
            now = None
        if now is not None and now.digest == known.digest:
            known.stamp = now.stamp
            return known
        if not known.config.is_alora and not lora_request.load_inplace and not claims_alora(known.path):
            return known  # as stock vLLM: plain LoRA goes on with what was loaded
        known.refused = now.stamp if now is not None else known.refused
        raise _changed(name, known.path)

    def read(self, path: str) -> AdapterRecord:
        """The adapter at ``path`` as it is now; the same record while its content is the same."""
        seen = self._read.get(path)
        plain_no_more = seen is not None and not seen.config.is_alora and claims_alora(path)  # a manifest came
        if seen is not None and not plain_no_more and stamp_of(seen.folder) == seen.stamp:
            return seen
        now = read_record(path, self.folder)
        now.unsent = weakref.finalize(now, shutil.rmtree, now.copy, ignore_errors=True)
        now.unsent.atexit = False
        if seen is not None and now.digest == seen.digest:
            seen.stamp = now.stamp  # rewritten with the same content
            return seen
        self._read[path] = now
        return now

    def hold(self, lora_id: int, record: AdapterRecord) -> None:
        """What ``lora_id`` means from now on, or until many others have been asked for."""
        if record.unsent is not None and record.unsent.detach():
            self._copies[record.copy] = weakref.ref(record)
        self._by_id[lora_id] = record
        self._by_id.move_to_end(lora_id)
        while len(self._by_id) > self._kept:
            self._by_id.popitem(last=False)
            self._sweep(_GRACE)

    def accept(self, lora_id: int, record: AdapterRecord) -> None:
        """Hold what a request was accepted with: where the id means other weights, under a key that is nobody's id."""
        known = self._by_id.get(lora_id)
        self.hold(lora_id if known is None or known is record else -record.number, record)

    def held(self, record: AdapterRecord, but: int | None = None) -> bool:
        """Whether an id, ``but`` that one, means this record."""
        return any(other is record for lora_id, other in list(self._by_id.items()) if lora_id != but)

    def known(self, lora_id: int) -> AdapterRecord | None:
        return self._by_id.get(lora_id)

    def number(self, lora_id: int) -> int:
        """The workers' number for a user's id."""
        known = self._by_id.get(lora_id)
        return lora_id if known is None else known.number

    def ids(self, numbers: set[int]) -> set[int]:
        """The users' ids for the workers' numbers."""
        held = list(self._by_id.items())
        others = {number for number in numbers if number < FIRST_NUMBER}  # of adapters that stock vLLM handles
        return others | {lora_id for lora_id, record in held if lora_id > 0 and record.number in numbers}

    def forget(self, lora_id: int) -> None:
        """Free an id for another adapter."""
        self._by_id.pop(lora_id, None)

    def withdraw(self, record: AdapterRecord) -> None:
        """Free the ids of what the workers do not take: its files may be mended."""
        for lora_id in [number for number, other in list(self._by_id.items()) if other is record]:
            self._by_id.pop(lora_id, None)

    def sweep(self) -> None:
        """Delete the copies that neither an id nor a request holds any more.

        Called after the workers have answered, so no step that was sent before still loads from one of them.
        """
        self._sweep(0.0)

    def _sweep(self, grace: float) -> None:
        now = time.monotonic()
        for copy, record in list(self._copies.items()):
            if record() is None and now - self._unheld.setdefault(copy, now) >= grace:
                shutil.rmtree(copy, ignore_errors=True)
                self._copies.pop(copy, None)  # requests come in a thread of their own
                self._unheld.pop(copy, None)
