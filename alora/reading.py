"""Read what a user names: no device without end, no pipe that nobody fills, no link that somebody else put there."""

import errno
import os
import re
import select
import stat
from pathlib import Path
from typing import BinaryIO

from alora.errors import AloraError

LONGEST = 64 * 2**20  # bytes
PATIENCE = 10.0  # seconds until somebody writes to a named pipe
_HUB_BLOB = re.compile(r"\.\./\.\./blobs/[0-9a-f]+")  # the hub's cache: snapshots/REVISION/NAME -> ../../blobs/DIGEST


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """The bytes of a file, or of a pipe (a shell's ``<(...)``).

    Raises:
        OSError: it cannot be read, is a device or a pipe that nobody writes to, or holds more than ``longest`` bytes.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        kind = os.fstat(stream.fileno()).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise OSError(errno.EINVAL, "is a device and no file")
        # A shell's own pipe has no name to be found under, and a writer that may take its time.
        named = stat.S_ISFIFO(kind) and Path(os.path.realpath(path)).exists()
        if named and not select.select([stream], [], [], PATIENCE)[0]:
            raise OSError(errno.ENXIO, "is a pipe, and nobody writes to it")
        os.set_blocking(stream.fileno(), True)
        return read_stream(stream, longest)


def read_stream(stream: BinaryIO, longest: int = LONGEST) -> bytes:
    """All of ``stream``; OSError when there is more of it than ``longest`` bytes."""
    content = stream.read(longest + 1)
    if len(content) > longest:
        raise OSError(errno.EFBIG, f"is longer than {longest // 2**20} MiB")
    return content


def require_plain(folder: Path, error: type[AloraError], *names: str) -> None:
    """The gate of every folder that may come from elsewhere: only files and folders lie in it, so that no reader,
    alora's or PEFT's or vLLM's, is led out of it, or waits.

    ``folder`` itself may be a link, being what the user named. Hidden folders (a checkout's ``.git``), which nothing
    reads, are not looked into; links of the hub's own cache lead to its own blobs.

    Args:
        names: of the entries to look at, with all below them; none: all.

    Raises:
        error: something in it is a link, a pipe, a socket or a device.
    """
    waiting = [folder / name for name in names] if names else _entries(folder, error)
    while waiting:
        path = waiting.pop()
        try:
            kind = path.lstat().st_mode
        except FileNotFoundError:
            continue
        except OSError as failure:
            raise error(f"{path} cannot be read: {failure.strerror}") from failure
        if stat.S_ISDIR(kind):
            waiting += [] if path.name.startswith(".") else _entries(path, error)
        elif not stat.S_ISREG(kind) and not _in_hub_cache(path):
            what = "a link, and may lead to any file of yours" if stat.S_ISLNK(kind) else "no file"
            raise error(f"{path} is {what}; put the file itself there, or get the folder again")


def _entries(folder: Path, error: type[AloraError]) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:  # what reads it says so
        return []
    except OSError as failure:
        raise error(f"{folder} cannot be read: {failure.strerror}") from failure


def _in_hub_cache(link: Path) -> bool:
    """Whether ``link`` is one that huggingface_hub made, straight to a file of its cache."""
    try:
        target, snapshot = str(link.readlink()), link.parent.resolve()
    except OSError:
        return False
    blobs = snapshot.parent.parent / "blobs"
    named = snapshot.parent.name == "snapshots" and _HUB_BLOB.fullmatch(target) is not None
    return named and not blobs.is_symlink() and stat.S_ISREG((blobs / Path(target).name).lstat().st_mode)
