"""``python -m alora`` is ``alora``."""

import sys

from alora.cli import main

if __name__ == "__main__":
    sys.exit(main())
