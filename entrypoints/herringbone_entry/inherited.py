"""The environment variables and descriptors of a supervisor that its children inherit, and those that they do not.

This module is imported before all others, so it imports little.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from herringbone_contract.constants import HostVariable

# Only a supervisor may know these; a rank inherits none of them.
PRIVATE_VARIABLES = (
    HostVariable.CONTROL,
    HostVariable.KEY_FILE,
    HostVariable.LIFELINE,
    HostVariable.PRIVATE,
    HostVariable.REMOTE_KEY,
    HostVariable.REMOTE_KEY_FD,
    HostVariable.RUN_FOLDER,
    HostVariable.STANDBY,
    HostVariable.STARTS,
)
_DESCRIPTORS = (HostVariable.KEY_FILE, HostVariable.LIFELINE, HostVariable.PRIVATE, HostVariable.REMOTE_KEY_FD)
DESCRIPTOR_FOLDER = "/dev/fd/"


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every rank inherits: the supervisor's own, without the private ones.

    >>> inherited({"HOME": "/root", "HERRINGBONE_LIFELINE_FD": "3"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environ.items() if name not in PRIVATE_VARIABLES}


def keep_descriptors(environ: Mapping[str, str]) -> None:
    """Keep the descriptors that the backend gave the supervisor out of every child.

    A prewarmed rank starts before the key is read, and could read it first.
    """
    for name in _DESCRIPTORS:
        # A value that is no number, or no open descriptor, is reported later, by the function that reads it.
        with contextlib.suppress(KeyError, ValueError, OSError):
            os.set_inheritable(int(environ[name].removeprefix(DESCRIPTOR_FOLDER)), False)
