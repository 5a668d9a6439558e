"""The program that examines a host: over a socket, a line of JSON has a request, and a line its report.

    {"ask": "local", "folders": [...], "gpus": 0}
    {"ask": "links", "hosts": [...], "rank": 0, "address": "10.0.0.1", "port": 7000, "backend": "gloo", "limit": 10.0}

A program of its own: torch takes seconds to import, a driver may hang, and a broken device may end the process.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from typing import Any

from herringbone_contract.masking import printable
from herringbone_entry import processes
from herringbone_entry.health import device, links, probes

# As in `launchers.plain`: no folder of the user's comes first on sys.path.
_START = "import sys; sys.path = [*filter(None, sys.path)]; from herringbone_entry.health.examine import main; main()"


def command(python: str, descriptor: int) -> list[str]:
    """Return the command of the program, which inherits this descriptor of a socket.

    >>> command("python3", 7)[-1]
    '7'
    """
    return [python, "-c", _START, str(descriptor)]


def main() -> None:
    """Answer requests until the other end of the socket is closed."""
    processes.die_with(os.getppid())
    with socket.socket(fileno=int(sys.argv[1])) as link:
        os.set_inheritable(link.fileno(), False)
        for line in link.makefile("r"):
            link.sendall(json.dumps(answer(json.loads(line))).encode() + b"\n")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the report that a request asks for; an examination that fails is no failure of the host."""
    report: dict[str, Any] = {}
    try:
        if request["ask"] == "links":
            arguments = {name: value for name, value in request.items() if name != "ask"}
            return links.measure(importlib.import_module("torch"), **arguments)
        report = {"gpus": request["gpus"], **probes.look(request["folders"])}
        # By name: a host without torch has the rest examined.
        report |= device.examine(importlib.import_module("torch"))
    except ModuleNotFoundError as error:
        report["trouble"] = f"devices and network, because its Python has no {error.name}"
    except Exception as error:  # noqa: BLE001 - of any library and driver
        member = "apart" if request["ask"] == "links" else "trouble"
        report[member] = printable(f"{type(error).__name__}: {error}".splitlines()[0])[:300]
    return report


if __name__ == "__main__":
    main()
