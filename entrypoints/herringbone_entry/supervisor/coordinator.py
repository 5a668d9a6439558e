"""The job as a whole, decided on the first host: when to start, who failed first, when it is over, with which code.

    joining --ready from all, checked by all--> running --all ranks ended with 0--> done
                                  |  |\\-stop--> stopping --all ranks ended--> done (143, or 0 when all exited 0)
                                  |  \\--rank 0, a chief, ended with 0--> closing --all ranks ended--> done
                                  \\--a rank failed, a host was lost--> failing --all ended--> done

Hosts report events and obey orders; both are messages (`Message`, plain dicts), and it makes no difference here
whether a host is this one or another. No I/O: time and orders go through the constructor's arguments.

    host -> coordinator   ready {processes, has_launcher, port, reduce_port, server_port, tensorflow, has_chief} ·
                          checked {facts} ·
                          ended {rank, code, failure, age} · deferred {rank} · failed {failure} · stop · kill ·
                          launcher_ended {code, rank_code, failure} · server_ended {code, failure} ·
                          spawn {host, number, command} · daemon_ended {number, code, tail}
    coordinator -> hosts  check {names} · start {counts, meeting} · stop · release ·
                          abort {after} · kill · finish {code, failure}
              -> one host say {host, text} · spawn {host, number, command} · daemon_ended {host, number, code, tail}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from herringbone_contract.failure import Failure, lost_contact, parse_failure
from herringbone_entry.channel.frames import Message
from herringbone_entry.ranks.layout import lay_out

# After the first sign of failure, wait for an earlier one that took longer to arrive.
SETTLE_SECONDS = 0.25
# After that many seconds nobody is waited for any more.
ABORT_SECONDS = 5.0
STOPPED_CODE = 143
_LOOPBACK = "127.0.0.1"
# Exit codes above are those of processes that a signal ended.
_SIGNALLED = 128

Later = Callable[[float, Callable[[], None]], object]


class Phase(Enum):
    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSING = "closing"
    FAILING = "failing"
    DONE = "done"


# Hosts and servers that go now go because they were told to.
_ENDING = (Phase.STOPPING, Phase.CLOSING)


class Evidence(NamedTuple):
    """One sign of failure. `code` is None for a rank of mpirun's that a signal killed: only mpirun knows which.

    `helper` says that a helper host, or its server, was ended from without: ranks that miss it fail too, it never fails
    for them.
    """

    when: float
    failure: Failure
    code: int | None
    from_launcher: bool = False
    lost_host: bool = False
    helper: bool = False


class Coordinator:
    """Decides for the whole job.

    `order` sends a message to every host that has joined, or to the one that it names as `host`; `clock` and `later`
    count the same seconds. `across` says that the hosts are machines of their own, to be checked before the start.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        order: Callable[[Message], None],
        clock: Callable[[], float],
        later: Later,
        join_timeout: float,
        across: bool,
    ) -> None:
        self._hosts = hosts
        self._order, self._clock, self._later = order, clock, later
        self.phase = Phase.JOINING
        self._counts: dict[str, int] = {}
        self._readies: dict[str, Message] = {}
        self._across = across
        self._facts: dict[str, Message] = {}
        self._skews: dict[str, float] = {}
        self._checking = False
        self._lost: set[str] = set()
        self._rank_hosts: dict[int, str] = {}
        self._codes: dict[int, int | None] = {}
        self._deferred: set[int] = set()
        self._has_launcher = False
        self._has_chief = False
        self._launcher_code: int | None = None
        self._killed_code = 1
        self._evidence: list[Evidence] = []
        self._settled = False
        self._released = False
        self._finish: Message | None = None
        later(join_timeout, lambda: self._missing(join_timeout))

    def joined(self) -> None:
        """A host has come; when the job is over already, it must hear so."""
        if self._finish is not None:
            self._order(self._finish)

    def receive(self, host: str, message: Message) -> None:
        """Take an event from a host."""
        kind = message["kind"]
        if self.phase is Phase.DONE:
            return
        if kind == "ready":
            self._ready(host, message)
        elif kind == "checked":
            self._checked(host, message["facts"])
        elif kind == "ended":
            self._ended(message)
        elif kind == "deferred":
            self._deferred.add(message["rank"])
        elif kind == "launcher_ended":
            self._launcher_ended(message)
        elif kind == "server_ended":
            self._server_ended(host, message)
        elif kind == "failed":
            self._counts.setdefault(host, 0)
            failure = parse_failure(message["failure"])
            self._fail(Evidence(self._clock(), failure, failure.exit_code))
        elif kind in ("stop", "kill"):
            self._stop(kind)
        elif kind == "spawn":
            self._spawn(message)
        elif kind == "daemon_ended":
            self._order({**message, "host": self._hosts[0]})
        self._advance()

    def lost(self, host: str, silence: str = "") -> None:
        """A host is gone without a farewell: its end of the channel closed, or it was silent, for as long as said."""
        if self.phase is Phase.DONE:
            return
        self._lost.add(host)
        failure = lost_contact(host, silence)
        if self.phase not in _ENDING:
            helper = self._readies.get(host, {}).get("server_port") is not None
            self._fail(Evidence(self._clock(), failure, 1, lost_host=True, helper=helper))
        for rank, owner in self._rank_hosts.items():
            if owner == host:
                self._codes.setdefault(rank, 1)
        self._advance()

    def _ready(self, host: str, message: Message) -> None:
        self._counts[host], self._readies[host] = message["processes"], message
        self._has_launcher = self._has_launcher or message["has_launcher"]
        self._has_chief = message["has_chief"]
        if self.phase is not Phase.JOINING or len(self._counts) < len(self._hosts):
            return
        if not self._across:
            self._start(_LOOPBACK)
            return
        from herringbone_entry.supervisor.preflight import PATIENCE_SECONDS

        self._checking = True
        self._order({"kind": "check", "names": [self._hosts[0], lay_out(self._counts).master]})
        self._later(PATIENCE_SECONDS, self._conclude_check)

    def _checked(self, host: str, facts: Message) -> None:
        self._facts[host] = facts
        # As far off as the message was on its way: a millisecond or so.
        self._skews[host] = facts["wall"] - self._clock()
        if len(self._facts) == len(self._hosts):
            self._conclude_check()

    def _conclude_check(self) -> None:
        """All have answered, or some will not in time: say what was found, and start."""
        if not self._checking or self.phase is not Phase.JOINING:
            return
        from herringbone_entry.supervisor.preflight import master_address, report

        self._checking = False
        base = self._skews.get(self._hosts[0], 0.0)
        skews = {host: skew - base for host, skew in self._skews.items()}
        text = "\n".join(report(self._hosts, self._facts, skews))
        self._order({"kind": "say", "host": self._hosts[0], "text": text})
        self._start(master_address(lay_out(self._counts).master, self._facts))

    def _start(self, master_address: str) -> None:
        self.phase = Phase.RUNNING
        layout = lay_out(self._counts)
        self._rank_hosts = {rank: layout.place(rank).host for rank in range(layout.world_size)}
        ports = {name: self._readies[layout.master][name] for name in ("port", "reduce_port")}
        meeting = {"address": master_address, **ports, "servers": self._servers(len(layout.hosts))}
        meeting["tensorflow"] = [
            [self._address_of(host), *self._readies[host]["tensorflow"]]
            for host in layout.hosts
            if self._readies[host]["tensorflow"]
        ]
        self._order({"kind": "start", "counts": self._counts, "meeting": meeting})

    def _servers(self, training_hosts: int) -> str:
        """Return where the servers of helper hosts listen, and say so where some are of no use."""
        ports = {host: ready["server_port"] for host, ready in self._readies.items() if ready["server_port"]}
        if not ports:
            return ""
        from herringbone_contract.reduce_servers import ReduceServer, advice, encode

        text = advice(training_hosts=training_hosts, helpers=len(ports))
        if text is not None:
            self._order({"kind": "say", "host": self._hosts[0], "text": f"advice: {text}"})
        return encode(
            [ReduceServer(host, self._address_of(host), ports[host]) for host in self._hosts if host in ports]
        )

    def _address_of(self, host: str) -> str:
        """Return how the others call a host; one that did not answer in time is called by its name."""
        return (self._facts.get(host, {}).get("address") or host) if self._across else _LOOPBACK

    def _ended(self, message: Message) -> None:
        rank, code = message["rank"], message["code"]
        self._codes[rank] = code
        if code != 0 and self.phase in (Phase.RUNNING, Phase.FAILING):
            when = self._clock() - message["age"]
            self._fail(Evidence(when, parse_failure(message["failure"]), code))

    def _launcher_ended(self, message: Message) -> None:
        self._launcher_code, self._killed_code = message["code"], message["rank_code"]
        evidence = Evidence(self._clock(), parse_failure(message["failure"]), message["code"] or 1, from_launcher=True)
        if self.phase is Phase.RUNNING and message["code"]:
            self._fail(evidence)
        elif self.phase is Phase.RUNNING:
            # The ranks' own ends may still be on their way.
            self._later(SETTLE_SECONDS, lambda: self._unexplained(evidence))

    def _server_ended(self, host: str, message: Message) -> None:
        """A helper host's server ended by itself, or was ended."""
        self._counts.setdefault(host, 0)
        code = message["code"]
        if self.phase not in _ENDING:
            killed = code > _SIGNALLED
            self._fail(Evidence(self._clock(), parse_failure(message["failure"]), code or 1, helper=killed))

    def _unexplained(self, evidence: Evidence) -> None:
        """mpirun says that all went well, and yet some rank never said that it ended."""
        if self.phase is Phase.RUNNING:
            self._fail(evidence)
            self._advance()

    def _spawn(self, message: Message) -> None:
        """mpirun, on the first host, wants a daemon on some host; the number is its own."""
        if message["host"] in self._hosts:
            self._order(message)
        else:
            told = [f"{message['host']} is none of this job's hosts, {', '.join(self._hosts)}"]
            answer = {"kind": "daemon_ended", "number": message["number"], "code": 1, "tail": told}
            self._order({**answer, "host": self._hosts[0]})

    def _fail(self, evidence: Evidence) -> None:
        self._evidence.append(evidence)
        if self.phase is Phase.FAILING:
            return
        self.phase = Phase.FAILING
        # Where mpirun is to tell which signal killed the rank, it must not see others die of ours first.
        self._order({"kind": "abort", "after": SETTLE_SECONDS if evidence.code is None else 0.0})
        self._later(SETTLE_SECONDS, self._settle)
        self._later(ABORT_SECONDS, self._give_up)

    def _settle(self) -> None:
        self._settled = True
        self._advance()

    def _stop(self, kind: str) -> None:
        if kind == "kill":
            self._order({"kind": "kill"})
        if self.phase is Phase.JOINING:
            self._done(STOPPED_CODE, None)
        elif self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING
            self._order({"kind": "stop"})

    def _missing(self, waited: float) -> None:
        if self.phase is Phase.JOINING and not self._checking:
            names = ", ".join(host for host in self._hosts if host not in self._counts)
            message = f"{names} did not come within {waited:g} s; is the host up, and did its container start?"
            failure = Failure(exit_code=1, exception="LaunchError", message=message)
            self._done(1, failure)

    def _advance(self) -> None:
        """See whether anything that was waited for has come."""
        if self.phase in (Phase.JOINING, Phase.DONE):
            return
        if self.phase is Phase.STOPPING and not self._released:
            waiting = set(self._rank_hosts) - set(self._codes) - self._deferred
            if not waiting:
                self._released = True
                self._order({"kind": "release"})
        launcher_ended = self._launcher_code is not None
        all_ended = len(self._codes) == len(self._rank_hosts) and (launcher_ended or not self._has_launcher)
        if self.phase in (Phase.RUNNING, Phase.CLOSING) and all_ended:
            self._done(0, None)
        elif self.phase is Phase.RUNNING and self._has_chief and self._codes.get(0) == 0:
            # What the others do is for the chief, and some never end by themselves.
            self.phase = Phase.CLOSING
            self._order({"kind": "stop"})
        elif self.phase is Phase.STOPPING and all_ended:
            self._done(STOPPED_CODE if any(code != 0 for code in self._codes.values()) else 0, None)
        elif self.phase is Phase.FAILING and self._settled and self._all_heard() and (all_ended or launcher_ended):
            # With mpirun gone, ranks of which nothing was heard never started.
            self._give_up()

    def _all_heard(self) -> bool:
        return len(set(self._counts) | self._lost) == len(self._hosts)

    def _give_up(self) -> None:
        """Name the failure that came first.

        A helper's before a rank's, which may be heard of earlier, and those before mpirun's, which only follows.
        """
        if self.phase is Phase.DONE:
            return
        first = min(self._evidence, key=lambda each: (each.from_launcher, not each.helper, each.when))
        if first.code is None:
            # When a host goes down, mpirun kills the other hosts' ranks; they may be seen to end before the host is.
            first = next((evidence for evidence in self._evidence if evidence.lost_host), first)
        code = first.code
        if code is None:
            code = self._killed_code or 1
        self._done(code, first.failure._replace(exit_code=code))

    def _done(self, code: int, failure: Failure | None) -> None:
        self.phase = Phase.DONE
        text = None if failure is None else failure.to_json()
        self._finish = {"kind": "finish", "code": code, "failure": text}
        self._order(self._finish)
