"""Read a file whole, but no device without end: what a user names may be ``/dev/zero``."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LONGEST = 64 * 2**20  # bytes


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """The bytes of a file, or of a pipe (a shell's ``<(...)``).

    Raises:
        OSError: it cannot be read, is a device, or holds more than ``longest`` bytes.
    """
    with path.open("rb") as stream:
        kind = os.fstat(stream.fileno()).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise OSError(errno.EINVAL, "is a device and no file")
        return read_stream(stream, longest)


def read_stream(stream: BinaryIO, longest: int = LONGEST) -> bytes:
    """All of ``stream``; OSError when there is more of it than ``longest`` bytes."""
    content = stream.read(longest + 1)
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"is longer than {longest // 2**20} MiB")
    return content
