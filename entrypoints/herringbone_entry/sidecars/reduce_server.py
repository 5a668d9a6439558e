"""The first lines of a helper's server: tie it to its supervisor, then run the library's own program."""

from __future__ import annotations

import os
import runpy

from herringbone_contract.constants import REDUCE_SERVER_MODULE
from herringbone_entry.processes import die_with


def main() -> None:
    """Run the server as `__main__`."""
    die_with(os.getppid())
    runpy.run_module(REDUCE_SERVER_MODULE, run_name="__main__", alter_sys=True)
