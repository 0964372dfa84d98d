"""Remarks on standard error, so that a pipe does not read them."""

import sys

from alora.reading import printable


def note(text: str) -> None:
    """Print a remark."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()
