"""What the client tells a controller: one JSON object on its standard input.

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
    """Hosts that are processes: `argv` starts a supervisor, in the job's environment and what each host adds to it.

    `key` is what the job's supervisors prove to each other that they know, where some of them are not ours to start;
    else None, and the controller makes one where there are several.
    """

    argv: list[str]
    environment: dict[str, str]
    host_environments: dict[str, dict[str, str]]
    key: str | None


class ContainerOrder(TypedDict):
    """A container that runs: its id, and two descriptors that the controller was born with.

    `stream` carries its output here and its private line and lifeline there; `ending` gives the engine's word on its
    end. `fetched` are folders of the container, each with the folder here that its content goes to at the end; none
    where they are mounted.
    """

    id: str
    stream: int
    ending: int
    fetched: dict[str, str]


class ContainersOrder(TypedDict):
    """Hosts that are containers, by their names, and the network between them; each is told `line` in private."""

    engine: str
    network: str | None
    line: str
    containers: dict[str, ContainerOrder]


class StepsOrder(TypedDict):
    """Hosts that are steps of a Slurm job, each on a node of its own.

    `srun` is what srun is told beside where a host goes; `argv` starts a supervisor on its node. `environment` is told
    to the supervisors in private; `variables` are for all to see.
    """

    srun: list[str]
    argv: list[str]
    environment: dict[str, str]
    variables: dict[str, str]


class Order(TypedDict):
    """One job. Paths are absolute; times are seconds.

    One of `processes`, `containers` and `steps` says what the hosts are. `patience` is how long hosts may outlive the
    first host that failed, and `warning` how long before the end of `max_run` they are told to stop. `run_folder` is
    empty where each host makes its own. `output` is the folder for what is packed, `compress` says whether into
    archives; None where somebody else fetches and packs what the hosts leave. What becomes of the job goes into the
    `index`, or where that lies on another machine, into the file `report`. `retries` is how often the job may begin
    anew, and `policies` are patterns in its log that decide whether it does, each with its action.
    """

    job: str
    index: str | None
    report: str | None
    logs: str
    hosts: list[HostOrder]
    processes: ProcessesOrder | None
    containers: ContainersOrder | None
    steps: StepsOrder | None
    run_folder: str
    retries: int
    policies: dict[str, str]
    max_run: float
    warning: float
    stop_grace: float
    patience: float
    output: str | None
    compress: bool
