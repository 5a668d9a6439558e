"""The messages between the coordinator and the supervisors of a job's hosts, by their `kind`.

    host -> coordinator   Ready · Checked · RankEnded · RankDeferred · HostFailed · Stop · Asked · Kill ·
                          LauncherEnded · ServerEnded · Spawn · DaemonEnded ·
                          Moved · UnusedDevices · LossReport · Checksum · Steps · ClockTime · RankEntries ·
                          StacksWanted · RankStacks · RankRecord · Removed
    coordinator -> hosts  Check · Start · Ask · Stop · Release · Abort · Kill · Finish · LookAtStacks · Clock · Removed
              -> one host Say · Emit · Spawn · DaemonEnded                             (its name is in `host`)

A message is the JSON object that travels, so nothing converts it. Messages are typed dictionaries, and this module is
imported for type checks alone: two dozen NamedTuple classes would cost every supervisor milliseconds before its first
rank starts. `failure` is always the text that `Failure.to_json` writes.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from herringbone_contract.faults.bad_steps import BadSteps


class Ready(TypedDict):
    """A host can start. `server_port` is a helper's server, `tensorflow` are the ports of TensorFlow's servers."""

    kind: Literal["ready"]
    processes: int
    port: int
    reduce_port: int
    server_port: int | None
    tensorflow: list[int]
    has_launcher: bool
    has_chief: bool


class Facts(TypedDict):
    """A host's facts about itself. `wall` is its clock in seconds, `unknown` are the names it cannot resolve.

    `known` are the addresses of the names that it can resolve. `machine` is the same for containers of one machine, and
    empty where the system does not tell.
    """

    group: str
    machine: str
    cpus: int
    gpus: int
    free_bytes: int
    interface: str | None
    named_interface: str | None
    address: str | None
    wall: float
    unknown: list[str]
    known: dict[str, str]


class Checked(TypedDict):
    """A host has done what an order `Check` asked for: `report` has `Facts`, or a part of that of `faults.health`."""

    kind: Literal["checked"]
    ask: str
    report: Any


class RankEnded(TypedDict):
    """A rank has ended, `age` seconds ago.

    `code` is None for a rank under mpirun that reported none; `seen` is then the exit code that the system showed, None
    if it showed none. `reaped` means that its parent had collected its exit code before the supervisor could look.
    `over` means that only Python's teardown remained. `failure` is None if `code` is 0. `obeyed` means that a rank of
    its host was asked to stop, and has heard so.
    """

    kind: Literal["ended"]
    rank: int
    code: int | None
    seen: int | None
    reaped: bool
    over: bool
    obeyed: bool
    age: float
    failure: str | None


class RankDeferred(TypedDict):
    """A rank does not handle SIGTERM; its supervisor waits for `Release` before it sends the signal."""

    kind: Literal["deferred"]
    rank: int


class HostFailed(TypedDict):
    """A host could not prepare."""

    kind: Literal["failed"]
    failure: str


class LauncherEnded(TypedDict):
    """mpirun has ended; `killed` if somebody else killed it.

    `rank_code` is the exit code of a rank that could not report its own.
    """

    kind: Literal["launcher_ended"]
    code: int
    rank_code: int
    killed: bool
    failure: str


class ServerEnded(TypedDict):
    """A server that the ranks need has ended before they did; `killed` if somebody else signalled it."""

    kind: Literal["server_ended"]
    code: int
    killed: bool
    failure: str


class Moved(TypedDict):
    """No rank of the host has moved for `quiet` seconds; a job stands still after `limit` seconds.

    `idle` is how long each rank has done nothing. `is_starved` means that others had the CPUs within the limit,
    `is_chosen` that the user gave it.
    """

    kind: Literal["moved"]
    quiet: float
    limit: float
    idle: dict[str, float]
    is_starved: bool
    is_chosen: bool


class UnusedDevices(TypedDict):
    """No device of the host has been used for `seconds`, by samples of `covers` seconds; `what` says which devices."""

    kind: Literal["unused"]
    seconds: float
    covers: float
    what: str
    limit: float


class LossReport(TypedDict):
    """A loss of a rank is wrong, by the rule `fault`; `text` says how, and `bad` are its steps."""

    kind: Literal["loss"]
    fault: str
    rank: int | None
    text: str
    bad: BadSteps


class Checksum(TypedDict):
    """The checksum of a rank's parameters after a step."""

    kind: Literal["checksum"]
    rank: int
    step: int
    value: str


class Steps(TypedDict):
    """The times in seconds of the next steps of ranks, and `facts` as in `RankEntries`; JSON has a rank as text."""

    kind: Literal["steps"]
    seconds: dict[str, list[float]]
    facts: dict[str, dict[str, Any]]


class ClockTime(TypedDict):
    """The host's clock, in seconds since 1970, when it got the order `Clock` with this `id`."""

    kind: Literal["clock"]
    id: int
    wall: float


class RankEntries(TypedDict):
    """The times of a rank's last steps and collective operations (`ranks.recorder.entries`), if it records them.

    `facts` are the means of what the last samples say about the rank.
    """

    kind: Literal["times"]
    id: int
    rank: int
    record: dict[str, Any] | None
    facts: dict[str, Any]


class Removed(TypedDict):
    """A host has removed the checkpoint `unit` because `after` is whole; the others remove theirs."""

    kind: Literal["removed"]
    unit: str
    after: str


class StacksWanted(TypedDict):
    """A client asks where all ranks are; the event with the answer has this `id`."""

    kind: Literal["stacks_wanted"]
    id: str


class RankStacks(TypedDict):
    """A rank is at `place` (`watch.fold.Place`); `record` is its flight record, if it has one.

    Of each connection: its own address, the peer's, and whether data waits to be confirmed.
    """

    kind: Literal["stacks"]
    id: str
    rank: int
    place: list[Any]
    connections: list[tuple[str, str, bool]]
    record: dict[str, Any] | None


class RankRecord(TypedDict):
    """The flight record of a rank that has failed; `RankEnded` follows."""

    kind: Literal["record"]
    rank: int
    record: dict[str, Any]


class StopWanted(TypedDict):
    """Somebody asked this host to stop the job, by what `why` says; `leaving`: the platform takes the host away."""

    kind: Literal["stop"]
    why: str
    leaving: bool


class Ask(TypedDict):
    """Let the ranks wait in their next call of `should_stop`, and report how many they have made."""

    kind: Literal["ask"]
    why: str


class Asked(TypedDict):
    """The most calls that a rank of the host has made; 0 for ranks that never call."""

    kind: Literal["asked"]
    most: int


class Stop(TypedDict):
    """Stop the ranks, with the grace period: at this call of theirs; 0: by SIGTERM now."""

    kind: Literal["stop"]
    call: int


class Kill(TypedDict):
    """Upwards: somebody asked a second time. Downwards: kill what still runs."""

    kind: Literal["kill"]


class Spawn(TypedDict):
    """mpirun needs a daemon on `host`; `number` is the agent that waits for it on the first host.

    `argv` is its argument vector. A value in `variables` may refer to the variable's own value on that host.
    """

    kind: Literal["spawn"]
    host: str
    number: int
    argv: list[str]
    variables: dict[str, str]


class DaemonEnded(TypedDict):
    """A daemon of mpirun's has ended; `killed` if somebody else killed it. `tail` are its last lines.

    `host` is the one whose agent waits: the first.
    """

    kind: Literal["daemon_ended"]
    host: str
    number: int
    code: int
    killed: bool
    tail: list[str]


class Check(TypedDict):
    """Look at yourself and resolve `names`, or examine yourself, or your links to `hosts`, or end that.

    `ask` in the request says which: "look", "local", "links" or "end". Without a `host`, all do.
    """

    kind: Literal["check"]
    host: str | None
    request: dict[str, Any]


class Say(TypedDict):
    """Print this text in the log of `host`."""

    kind: Literal["say"]
    host: str
    text: str


class Emit(TypedDict):
    """Print this event of the job on the output of `host`."""

    kind: Literal["emit"]
    host: str
    event: dict[str, Any]


class LookAtStacks(TypedDict):
    """Report where your ranks are, one message per rank."""

    kind: Literal["stacks"]
    id: str


class Clock(TypedDict):
    """Report your time; and then the last `steps` steps of your ranks, unless that is 0."""

    kind: Literal["clock"]
    id: int
    steps: int


class Start(TypedDict):
    """Start the ranks. `counts` are the ranks of each host, `meeting` is `Rendezvous.to_message()`.

    `machine_ranks` are the ranks of all hosts on each host's machine.
    """

    kind: Literal["start"]
    counts: dict[str, int]
    machine_ranks: dict[str, int]
    meeting: dict[str, Any]


class Release(TypedDict):
    """Every rank that saves has saved: send SIGTERM to the deferred ranks."""

    kind: Literal["release"]


class Abort(TypedDict):
    """The job has failed: end all ranks, in `after` seconds."""

    kind: Literal["abort"]
    after: float


class Hurry(TypedDict):
    """All ranks of the job have ended: mpirun and its daemons have nobody left to give time to."""

    kind: Literal["hurry"]


class Finish(TypedDict):
    """The job is over, with this exit code. `failure` is None when it did not fail."""

    kind: Literal["finish"]
    code: int
    failure: str | None


# The coordinator passes these on from host to host.
Passed = Spawn | DaemonEnded | Removed
Event = (
    Ready
    | Checked
    | RankEnded
    | RankDeferred
    | HostFailed
    | LauncherEnded
    | ServerEnded
    | StopWanted
    | Asked
    | Kill
    | Moved
    | UnusedDevices
    | LossReport
    | Checksum
    | Steps
    | ClockTime
    | RankEntries
    | StacksWanted
    | RankStacks
    | RankRecord
    | Passed
)
Order = (
    Check | Say | Emit | LookAtStacks | Clock | Start | Ask | Stop | Release | Abort | Hurry | Kill | Passed | Finish
)
