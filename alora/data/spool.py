"""Messages and tokens of many rows, on disk beyond a bound: training data may be larger than memory."""

import marshal
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

from alora.errors import DataError

IN_MEMORY = 256 * 2**20  # bytes; with more, the file is a real one

T = TypeVar("T")


class Spool:
    """A temporary file without a name, gone with its last reader; for one process and one thread."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed with its last reader
        weakref.finalize(self, self._file.close)

    def keep(self, items: Sequence[Any], decode: Callable[[Any], T] = lambda item: item) -> "Spooled[T]":
        """Store ``items``, which are plain data; ``decode`` is applied to each when it is read."""
        try:
            start = self._file.seek(0, os.SEEK_END)
            size = self._file.write(marshal.dumps(tuple(items)))
        except OSError as error:
            raise DataError(
                f"rows cannot be kept in a temporary file: {error.strerror or error}; set TMPDIR to a folder on a disk "
                "with room for all of them"
            ) from error
        return Spooled(self, (start, size), len(items), decode)

    def read(self, start: int, size: int) -> tuple[Any, ...]:
        """The items stored in these bytes."""
        self._file.seek(start)
        return marshal.loads(self._file.read(size))  # of this process's own writing: no other can open the file


class Spooled(Sequence[T]):
    """A sequence whose items are read when they are asked for; equal to any sequence of the same items."""

    __slots__ = ("_count", "_decode", "_span", "_spool")

    def __init__(self, spool: Spool, span: tuple[int, int], count: int, decode: Callable[[Any], T]) -> None:
        self._spool, self._span, self._count, self._decode = spool, span, count, decode

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return map(self._decode, self._spool.read(*self._span))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
