"""The controller's config: one JSON object that the client writes to the controller's standard input.

The config may contain the job's environment, secrets included. It therefore travels through a pipe, and is never on a
command line. Only Slurm's controller, on another machine, reads it from a file that its owner alone may read.
"""

from __future__ import annotations

from typing import Any, TypedDict


class HostConfig(TypedDict):
    """One host: its name, and the base folder of its contract tree on this machine."""

    name: str
    base: str


class ProcessesConfig(TypedDict):
    """Hosts that are processes: `argv` starts a supervisor, in `environment` plus the host's own variables.

    `key` is the secret that supervisors prove to each other. It is given when other controllers start some of the
    supervisors. Otherwise it is None, and the controller makes one for a job of several hosts. `holders`: keep
    checkpoints in the hosts' memory, too.
    """

    argv: list[str]
    environment: dict[str, str]
    host_environments: dict[str, dict[str, str]]
    key: str | None
    holders: bool


class ContainerConfig(TypedDict):
    """A running container: its id, and two descriptors that the controller inherited from the client.

    `stream` carries the container's output to the controller, and the private line and the lifeline to the container.
    `ending` delivers the engine's answer when the container ends. `fetched` maps folders of the container to folders
    of this machine, for an engine that cannot mount them; empty otherwise.
    """

    id: str
    stream: int
    ending: int
    fetched: dict[str, str]


class ContainersConfig(TypedDict):
    """Hosts that are containers, by host name, and the network between them; each gets `line` on standard input."""

    engine: str
    network: str | None
    line: str
    containers: dict[str, ContainerConfig]


class StepsConfig(TypedDict):
    """Hosts that are steps of a Slurm job, each on a node of its own.

    `srun` are srun's arguments besides the host's position, `argv` starts a supervisor on its node. Supervisors get
    `environment` in private over standard input; `variables` are visible to everybody on the node.
    """

    srun: list[str]
    argv: list[str]
    environment: dict[str, str]
    variables: dict[str, str]


class ClaimConfig(TypedDict):
    """The devices that the job has on this machine, and its ticket in the `folder` of the machine's line.

    The controller has inherited `descriptor`, which keeps the ticket alive. `devices` are ids of GPUs and CPU shares.
    """

    folder: str
    ticket: str
    descriptor: int
    devices: list[str]


class PermitConfig(TypedDict):
    """The file in which a machine's keeper writes how long ranks may run, and the seconds without that file."""

    path: str
    seconds: float


class S3Config(TypedDict):
    """Addresses in S3 that the job writes to; `herringbone.s3.sync.SyncOrder` has the same members.

    `checkpoints` is a folder of this machine and its address, `output` the address below which the results go.
    `access` has the credentials, or nothing where the controller's machine finds them by itself. `several`: other
    machines write checkpoints below the same address.
    """

    job: str
    checkpoints: tuple[str, str] | None
    output: str | None
    access: dict[str, str]
    several: bool


class PipesConfig(TypedDict):
    """The FIFOs of channels in Pipe mode; `herringbone.s3.pipes.order.FeedOrder` has the same members."""

    pipes: list[dict[str, Any]]
    access: dict[str, str]


class BudgetConfig(TypedDict):
    """The price of all hosts of the job, in dollars an hour.

    `seconds` are those that its `max_cost` pays for, over all attempts; None without one. `text` says it in words.
    """

    hourly_cost: float
    seconds: int | None
    text: str


class ReplanConfig(TypedDict):
    """A layout that needs less memory: the members of `plan.replans.Replan`."""

    sets: dict[str, str]
    removes: list[str]
    text: str


class ControllerConfig(TypedDict):
    """One job. Paths are absolute; times are seconds.

    `processes`, `containers` or `steps`: exactly one is set and describes the hosts.
    `index`, `report`: where the job's state is written; `report` is a file, used when the index is on another machine.
    `run_folder`: sockets; empty when each host makes its own.
    `retries`: number of restarts the job may have. `policies`: the members of `controller.retry.Policies`.
    `replans`: the layouts to take one after the other when the job runs out of memory.
    `sizes`: the numbers of hosts that the job may have, largest first; empty for one that keeps its own.
    `spent`: the seconds of `max_run` and of the budget that earlier attempts on other machines have used.
    `budget`: None for a job whose price is not known.
    `warning`: how long before the end of `max_run` the hosts get SIGTERM.
    `patience`: how long hosts may outlive the first host that failed.
    `metric_definitions`: pairs of a metric's name and its regular expression.
    `s3`: what the job writes to S3; None for nothing.
    `pipes`: the channels that scripts read from FIFOs; None for none.
    `claim`: the devices that no other job may use meanwhile; None for a job that has claimed none.
    `permit`: ends the ranks of a host whose machine is cut off; None where a client decides on retries.
    `output`: the folder for packed results; None when another process fetches and packs them. `compress`: pack into
    archives, not folders.
    `real_output`: the path of `output` without links, as it was when the job was submitted; None where it is not
    compared. A script that may write to a folder above `output` could otherwise send the results elsewhere, by a link.
    """

    job: str
    index: str | None
    report: str | None
    logs: str
    hosts: list[HostConfig]
    processes: ProcessesConfig | None
    containers: ContainersConfig | None
    steps: StepsConfig | None
    run_folder: str
    retries: int
    policies: dict[str, dict[str, str]]
    replans: list[ReplanConfig]
    sizes: list[int]
    max_run: float
    spent: float
    budget: BudgetConfig | None
    warning: float
    stop_grace: float
    patience: float
    metric_definitions: list[tuple[str, str]]
    claim: ClaimConfig | None
    output: str | None
    real_output: str | None
    compress: bool
    s3: S3Config | None
    pipes: PipesConfig | None
    permit: PermitConfig | None
