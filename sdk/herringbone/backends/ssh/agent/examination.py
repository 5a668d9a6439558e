"""Examine this machine as a job does before its first step, with the same program."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

_PROGRAM = "herringbone_entry.health.examine"


def examined(request: dict[str, Any], *, interface: str, seconds: float) -> dict[str, Any]:
    """Return the report that a request asks for, or its `trouble` after `seconds`; `interface` leads to the others."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(theirs.fileno())],
                # -m looks for modules in the current folder first, and the agent's is the user's own.
                cwd="/",
                env={**os.environ, **dict.fromkeys(names, interface)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        ours.settimeout(seconds)
        try:
            ours.sendall(json.dumps(request).encode() + b"\n")
            line = ours.makefile().readline()
        except OSError as error:
            line = json.dumps({"trouble": f"{error} after {seconds:g} s"})
    process.kill()
    process.wait()
    report: dict[str, Any] = json.loads(line or '{"trouble": "the program that examines it has ended"}')
    return report
