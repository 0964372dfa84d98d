"""Messages and tokens of many rows, on disk beyond a bound: training data may be larger than memory."""

import os
import pickle
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

from alora.errors import DataError

IN_MEMORY = 256 * 2**20  # bytes; with more, the file is a real one

T = TypeVar("T")


class Spool:
    """A temporary file without a name, gone with its last reader; for one process and one thread."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed with its last reader
        weakref.finalize(self, self._file.close)

    def keep(self, items: Sequence[T]) -> "Spooled[T]":
        """Store ``items``; they are read from the file whenever they are asked for."""
        try:
            start = self._file.seek(0, os.SEEK_END)
            size = self._file.write(pickle.dumps(tuple(items)))
        except OSError as error:
            raise DataError(
                f"rows cannot be kept in a temporary file: {error.strerror or error}; set TMPDIR to a folder on a disk "
                "with room for all of them"
            ) from error
        return Spooled(self, (start, size), len(items))

    def read(self, start: int, size: int) -> tuple[Any, ...]:
        """The items stored in these bytes."""
        self._file.seek(start)
        return pickle.loads(self._file.read(size))  # noqa: S301 - its own writing: no other process can open the file


class Spooled(Sequence[T]):
    """A sequence whose items are read when they are asked for; equal to any sequence of the same items."""

    __slots__ = ("_count", "_span", "_spool")

    def __init__(self, spool: Spool, span: tuple[int, int], count: int) -> None:
        self._spool, self._span, self._count = spool, span, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return iter(self._spool.read(*self._span))

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
