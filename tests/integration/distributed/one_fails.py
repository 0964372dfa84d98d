"""A worker whose second process fails while the first waits for it."""

import sys

import torch

from alora.cli import report
from alora.training.processes import join_processes


def main() -> int:
    """What the command line does with an error that one process has."""
    processes = join_processes("cpu")
    try:
        if not processes.first:
            raise OSError(28, "No space left on device", "somewhere")
        processes.any([False], torch.device("cpu"))
    except Exception as error:
        return report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
