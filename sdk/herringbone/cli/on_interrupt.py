"""The flag that says what Ctrl-C does to the job; `run` and `logs` have it."""

from __future__ import annotations

import argparse

from herringbone.jobs.interrupt import CHOICES


def add_on_interrupt(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    said = default or "stop here; on ml.* ask, and detach where there is no terminal"
    parser.add_argument(
        "--on-interrupt", choices=CHOICES, default=default, help=f"what Ctrl-C does to the job (default: {said})"
    )
