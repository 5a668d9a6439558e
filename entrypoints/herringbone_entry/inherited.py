"""What children of a supervisor get of what it was born with, and what they do not.

Imported before anything else is: little is needed for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from herringbone_contract.constants import HostVariable

# What only a supervisor may know; a rank inherits none of it.
PRIVATE_VARIABLES = (
    HostVariable.CONTROL,
    HostVariable.KEY_FILE,
    HostVariable.LIFELINE,
    HostVariable.PRIVATE,
    HostVariable.RUN_FOLDER,
)
_DESCRIPTORS = (HostVariable.KEY_FILE, HostVariable.LIFELINE, HostVariable.PRIVATE)
_DESCRIPTOR_FOLDER = "/dev/fd/"


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what every rank inherits: the supervisor's environment without what is the supervisor's alone.

    >>> inherited({"HOME": "/root", "HERRINGBONE_LIFELINE_FD": "3"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environ.items() if name not in PRIVATE_VARIABLES}


def keep_descriptors(environ: Mapping[str, str]) -> None:
    """Let no child have the descriptors that the backend gave the supervisor."""
    for name in _DESCRIPTORS:
        # What is no number, or not open, is told of where it is read.
        with contextlib.suppress(KeyError, ValueError, OSError):
            os.set_inheritable(int(environ[name].removeprefix(_DESCRIPTOR_FOLDER)), False)
