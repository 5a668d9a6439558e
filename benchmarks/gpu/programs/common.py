"""Common parts of the programs: their options, a home of their own for jobs, and free ports."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def options_of(description: str) -> argparse.ArgumentParser:
    """Build a parser with the options of all programs."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a dry run")
    return parser


def finish(result: dict[str, Any]) -> int:
    """Print the result as the program's last line. Return the exit code: 1 if `failed` names something."""
    print(json.dumps(result), flush=True)
    return 1 if result.get("failed") else 0


def end_on_sigterm() -> None:
    """Run the `finally` blocks of this program when it is told to end, so that jobs and ranks end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextmanager
def own_home() -> Iterator[Path]:
    """Give jobs a home and a folder of slots of their own, and stop the jobs that still run at the end."""
    end_on_sigterm()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["HERRINGBONE_HOME"] = str(Path(folder, "home"))
        os.environ["HERRINGBONE_SLOTS"] = str(Path(folder, "slots"))
        Path(folder, "slots").mkdir()
        try:
            yield Path(folder)
        finally:
            _stop_jobs()


def _stop_jobs() -> None:
    from herringbone import attach
    from herringbone.records.home import find_home
    from herringbone.records.index import JobIndex

    for record in JobIndex(find_home().index).running():
        attach(record.name).stop(grace=1.0)


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
