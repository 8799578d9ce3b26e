"""``python -m moorings`` is the command ``moor``."""

import sys

from moorings.cli import main

if __name__ == "__main__":
    sys.exit(main())
