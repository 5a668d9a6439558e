"""`python -m herringbone_entry`, also installed as `train`: the program that a container or a host starts."""

from __future__ import annotations

import os

from herringbone_entry.job import run


def main() -> None:
    """Take part in the job that this host's files describe, and exit with its code."""
    # Nothing is left to tidy or to flush, and the interpreter's own farewell takes milliseconds.
    os._exit(run(os.environ))


if __name__ == "__main__":
    main()
