"""Run MXNet's parameter server or scheduler, as `DMLC_ROLE` says; it ends with the ranks, or with its supervisor."""

from __future__ import annotations

import os
import socket
import sys

from herringbone_entry.processes import die_with


def main() -> None:
    """Serve until the workers have left: MXNet serves inside its import, and then exits the process."""
    die_with(os.getppid())
    # The scheduler listens at this address. MXNet listens at addresses only, and a container knows its host by name.
    os.environ["DMLC_PS_ROOT_URI"] = socket.gethostbyname(os.environ["DMLC_PS_ROOT_URI"])
    try:
        import mxnet  # noqa: F401
    except (ImportError, AttributeError, OSError) as error:
        sys.exit(
            f"parameter_server needs MXNet 1.9 and a numpy older than 1.24 in {sys.executable}: {error}. Install them "
            "(`pip install 'mxnet==1.9.1' 'numpy<1.24'`, on Python 3.10 or 3.11)"
        )
    sys.exit(f"MXNet in {sys.executable} does not serve: it was built without its distributed key-value store")
