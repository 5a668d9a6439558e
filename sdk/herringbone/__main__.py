"""`python -m herringbone` is the `herringbone` command, also where its script is not on the path."""

from __future__ import annotations

import sys

from herringbone.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
