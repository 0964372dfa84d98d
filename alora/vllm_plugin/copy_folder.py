"""The folder of an engine core's copies: locked while the core lives, and deleted by the next where it was killed."""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

FOLDER = "alora-copies-"


def lock(folder: str | Path) -> int | None:
    """A lock on a folder of copies that ends with the process, even one that is killed; None where another has it."""
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


def delete_abandoned() -> None:
    """Delete the copies of engine cores that were killed; not those of one that is just starting."""
    for folder in Path(tempfile.gettempdir()).glob(FOLDER + "*"):
        own = lock(folder)
        if own is not None:
            if os.fstat(own).st_mtime < time.time() - 60:  # a new folder has no lock for a moment
                shutil.rmtree(folder, ignore_errors=True)
            os.close(own)
