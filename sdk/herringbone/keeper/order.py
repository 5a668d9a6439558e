"""What the client tells a keeper: one JSON object on its standard input.

It may hold the environment of the job, secrets included: it travels through a pipe and is never on a disk or a command
line.
"""

from __future__ import annotations

from typing import TypedDict


class HostOrder(TypedDict):
    """One host: its name, and the base folder of its contract tree on this machine."""

    name: str
    base: str


class ProcessesOrder(TypedDict):
    """Hosts that are processes: `argv` starts a supervisor, in the job's environment and what each host adds to it."""

    argv: list[str]
    environment: dict[str, str]
    host_environments: dict[str, dict[str, str]]


class ContainerOrder(TypedDict):
    """A container that runs: its id, and two descriptors that the keeper was born with.

    `stream` carries its output here and its private line and lifeline there; `ending` gives the engine's word on its
    end. `fetched` are folders of the container, each with the folder here that its content goes to at the end; none
    where they are mounted.
    """

    id: str
    stream: int
    ending: int
    fetched: dict[str, str]


class ContainersOrder(TypedDict):
    """Hosts that are containers, by their names, and the network between them."""

    engine: str
    network: str | None
    containers: dict[str, ContainerOrder]


class Order(TypedDict):
    """One job. Paths are absolute; times are seconds.

    One of `processes` and `containers` says what the hosts are. `patience` is how long hosts may outlive the first
    host that failed. `output` is the folder for what is packed, `compress` says whether into archives.
    """

    job: str
    index: str
    logs: str
    hosts: list[HostOrder]
    processes: ProcessesOrder | None
    containers: ContainersOrder | None
    run_folder: str
    max_run: float
    stop_grace: float
    patience: float
    output: str
    compress: bool
