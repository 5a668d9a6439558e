"""What the client tells a keeper: one JSON object on its standard input.

It holds the environment of the job, secrets included: it travels through a pipe and is never on a disk or a command
line.
"""

from __future__ import annotations

from typing import TypedDict


class HostOrder(TypedDict):
    """One host: its name, the base folder of its contract tree, and what it adds to the environment."""

    name: str
    base: str
    environment: dict[str, str]


class Order(TypedDict):
    """One job. Paths are absolute; times are seconds.

    `argv` starts a supervisor. `patience` is how long hosts may outlive the first host that failed. `output` is the
    folder for what is packed, `compress` says whether into archives.
    """

    job: str
    index: str
    logs: str
    argv: list[str]
    environment: dict[str, str]
    hosts: list[HostOrder]
    run_folder: str
    max_run: float
    stop_grace: float
    patience: float
    output: str
    compress: bool
