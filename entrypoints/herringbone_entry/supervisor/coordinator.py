"""The coordinator, on the first host: decides when a job starts, which failure came first, and when the job is over.

    joining --ready from all, checked by all--> running --all ranks ended with 0--> done
                                  |  |\\-stop--> stopping --all ranks ended--> done (143; 0 when all exited 0 unasked)
                                  |  \\--rank 0, a chief, ended with 0--> closing --all ranks ended--> done
                                  \\--a rank failed, a host was lost--> failing --all ended--> done

Hosts report events and obey orders. Both are messages (`channel.messages`), and the coordinator treats its own host
like any other. It does no I/O: time and orders go through the constructor's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from herringbone_contract.failure import CRASH_CODES, STOPPED_CODE, Failure, lost_contact, lost_process
from herringbone_contract.failure_text import parse_failure
from herringbone_contract.faults.policies import REPORT, STOP, answer
from herringbone_entry.supervisor.evidence import Evidence, first_cause
from herringbone_entry.supervisor.host_register import HostRegister
from herringbone_entry.supervisor.job_stop import JobStop

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import (
        Checked,
        DaemonEnded,
        Event,
        Finish,
        HostFailed,
        LauncherEnded,
        Order,
        RankDeferred,
        RankEnded,
        Ready,
        ServerEnded,
        Spawn,
        StopWanted,
    )
    from herringbone_entry.supervisor.start_checks import StartChecks
    from herringbone_entry.supervisor.watching.job_watch import JobWatch

# After the first sign of failure, wait for an earlier one that took longer to arrive.
SETTLE_SECONDS = 0.25
# When a collective operation has timed out, the ranks that are not in it live this long: to find out where they are.
LOOK_SECONDS = 1.5
# After this many seconds a failing job ends, also when some ranks or hosts have not reported.
ABORT_SECONDS = 5.0
Later = Callable[[float, Callable[[], None]], object]


class Phase(Enum):
    """The phases of a job, as the picture above has them."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSING = "closing"
    FAILING = "failing"
    DONE = "done"


# Hosts and servers that end in these phases end because the coordinator asked for it.
_ENDING = (Phase.STOPPING, Phase.CLOSING)


class Coordinator:
    """Decides for the whole job.

    `order` sends a message to every host that has joined, or to the one host that the message names. `clock` and
    `later` count the same seconds. `across` means that the hosts are machines of their own, to be checked before the
    start. `policies` has the user's answers to kinds of faults, `infra_check` says whether hosts are examined.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        order: Callable[[Order], None],
        clock: Callable[[], float],
        later: Later,
        join_timeout: float,
        across: bool,
        policies: Mapping[str, str],
        infra_check: bool | None = False,
    ) -> None:
        self._policies, self._infra_check = policies, infra_check
        self._register = HostRegister(hosts, across=across)
        self._order, self._clock, self._later = order, clock, later
        # All members belong to the event loop's thread: events, timers and orders all run there.
        self.phase = Phase.JOINING
        # Once all hosts are ready, and the join timeout no longer applies.
        self._checks: StartChecks | None = None
        self._rank_hosts: dict[int, str] = {}
        # A rank has an entry once its end is known; the code is None when only mpirun knows it.
        self._codes: dict[int, int | None] = {}
        self._over: set[int] = set()
        self._deferred: set[int] = set()
        self._launcher_code: int | None = None
        # mpirun's word for the crash of a rank, which is no failure once Python's teardown is all that remains of all.
        self._crash: Evidence | None = None
        # mpirun's word for the exit code of a rank that a signal killed, and whether that may be the abort's SIGTERM.
        self._killed_code = 1
        self._may_be_ours = False
        # From this time on, ranks may end by the SIGTERM of our own abort.
        self._terminates_at = float("inf")
        self._evidence: list[Evidence] = []
        self._settled = False
        self._job_stop = JobStop(hosts, order=order, later=later)
        self._released = self._hurried = False
        # Kept after the end, for hosts that join late.
        self._finish: Finish | None = None
        self._handlers: dict[str, Callable[[str, Any], None]] = {
            "ready": self._ready,
            "checked": self._checked,
            "ended": self._rank_ended,
            "deferred": self._rank_deferred,
            "launcher_ended": self._launcher_ended,
            "server_ended": self._server_ended,
            "failed": self._host_failed,
            "stop": self._stop,
            "asked": self._job_stop.receive,
            "kill": self._kill,
            "spawn": self._spawn,
            "daemon_ended": self._daemon_ended,
            # To all hosts: each removes its own files of the checkpoint.
            "removed": lambda _, event: self._order(event),
            **dict.fromkeys(("moved", "unused", "steps", "clock", "times", "loss", "checksum"), self._watched),
            **dict.fromkeys(("stacks", "stacks_wanted", "record"), self._watched),
        }
        # Only of jobs with several ranks or `hang_timeout`, or that a client looks at.
        self._watch: JobWatch | None = None
        later(join_timeout, lambda: self._end_joining(join_timeout))

    def joined(self) -> None:
        """Note that a host has joined; when the job is over already, tell the host so."""
        if self._finish is not None:
            self._order(self._finish)

    def receive(self, host: str, event: Event) -> None:
        """Take an event from a host."""
        if self.phase is Phase.DONE:
            return
        # An event of a kind that this release does not know is ignored.
        if (handler := self._handlers.get(event["kind"])) is not None:
            handler(host, event)
        self._advance()

    def lost(self, host: str, silence: str = "") -> None:
        """Note that a host is gone: its connection closed, or it was silent for as long as `silence` says."""
        if self.phase is Phase.DONE:
            return
        self._register.add_lost(host)
        if self.phase not in _ENDING:
            failure, helper = lost_contact(host, silence), self._register.is_helper(host)
            self._fail(Evidence(self._clock(), failure, 1, lost_host=True, outside=helper))
        # Nobody will report the ends of its ranks.
        for rank, owner in self._rank_hosts.items():
            if owner == host:
                self._codes.setdefault(rank, 1)
        self._advance()

    # Joining

    def _ready(self, host: str, ready: Ready) -> None:
        self._register.add_ready(host, ready)
        if self.phase is not Phase.JOINING or self._register.missing:
            return
        if not (self._register.across or self._infra_check):
            self._start()
            return
        # Most jobs have one host and never need this module.
        from herringbone_entry.supervisor.start_checks import StartChecks

        self._checks = StartChecks(
            self._register,
            order=self._order,
            later=self._later,
            infra_check=self._infra_check,
            policies=self._policies,
            is_over=lambda: self.phase is not Phase.JOINING,
            on_end=lambda failure: self._start() if failure is None else self._end(1, failure),
        )
        self._checks.begin()

    def _checked(self, host: str, checked: Checked) -> None:
        if self._checks is not None:
            self._checks.take(host, checked, self._clock())

    def _end_joining(self, waited: float) -> None:
        """Give up hosts that have not come in time."""
        if self.phase is Phase.JOINING and self._checks is None:
            names = ", ".join(self._register.missing)
            message = f"{names} did not come within {waited:g} s; is the host up, and did its container start?"
            self._end(1, Failure(exit_code=1, exception="LaunchError", message=message))

    def _start(self) -> None:
        self.phase = Phase.RUNNING
        layout = self._register.layout
        # Needed when a host is lost: its ranks then count as ended.
        self._rank_hosts = {rank: layout.placement(rank).host for rank in range(layout.world_size)}
        advice = self._register.helper_advice()
        if advice is not None:
            self._order({"kind": "say", "host": self._register.first, "text": f"advice: {advice}"})
        counts, machine_ranks = self._register.counts, self._register.machine_ranks()
        meeting = self._register.rendezvous().to_message()
        self._order({"kind": "start", "counts": counts, "machine_ranks": machine_ranks, "meeting": meeting})

    # Ends of ranks, servers and mpirun

    def _rank_ended(self, host: str, ended: RankEnded) -> None:
        rank, code, failure = ended["rank"], ended["code"], ended["failure"]
        self._codes[rank] = code
        self._job_stop.note_end(obeyed=ended["obeyed"])
        if ended["over"]:
            self._over.add(rank)
        if failure is not None and code != 0 and self.phase in (Phase.RUNNING, Phase.FAILING):
            # The report took its time; the rank's own end decides which failure came first.
            when = self._clock() - ended["age"]
            # A daemon on another machine may tell mpirun later than mpirun sees a rank of its own end.
            reaped = ended["reaped"] and (not self._register.across or host == self._register.first)
            self._fail(Evidence(when, parse_failure(failure), code, seen=ended["seen"], reaped=reaped))

    def _rank_deferred(self, _host: str, deferred: RankDeferred) -> None:
        self._deferred.add(deferred["rank"])

    def _launcher_ended(self, _host: str, ended: LauncherEnded) -> None:
        code, killed = ended["code"], ended["killed"]
        self._launcher_code, self._killed_code = code, ended["rank_code"]
        # mpirun may have been slow to see the first death, and have seen a rank die of our own SIGTERM before.
        self._may_be_ours = ended["rank_code"] == STOPPED_CODE and self._clock() >= self._terminates_at
        evidence = Evidence(
            self._clock(), parse_failure(ended["failure"]), code or 1, from_launcher=not killed, outside=killed
        )
        if killed and self.phase in (Phase.RUNNING, Phase.FAILING):
            # Its ranks may have gone with it, and their ends may have arrived earlier.
            self._fail(evidence)
        elif self.phase is Phase.RUNNING and code and ended["rank_code"] not in CRASH_CODES:
            self._fail(evidence)
        elif self.phase is Phase.RUNNING:
            # The ranks' own ends may still be on their way, and a crash may have been in Python's teardown.
            self._crash = evidence if code else None
            self._later(SETTLE_SECONDS, lambda: self._fail_unless_ended(evidence))

    def _fail_unless_ended(self, evidence: Evidence) -> None:
        """Fail a job whose mpirun has ended although some rank never reported its end."""
        if self.phase is Phase.RUNNING:
            self._fail(evidence)
            self._advance()

    def _server_ended(self, host: str, ended: ServerEnded) -> None:
        self._register.add_failed(host)
        code = ended["code"]
        if self.phase not in _ENDING:
            # A server that ended by itself or crashed may have ended because of a rank; a killed one cannot have.
            self._fail(Evidence(self._clock(), parse_failure(ended["failure"]), code or 1, outside=ended["killed"]))

    def _host_failed(self, host: str, failed: HostFailed) -> None:
        self._register.add_failed(host)
        failure = parse_failure(failed["failure"])
        self._fail(Evidence(self._clock(), failure, failure.exit_code))

    # Hangs and stragglers

    def _watched(self, host: str, event: Any) -> None:
        if self.phase not in (Phase.RUNNING, Phase.FAILING):
            return
        if self._watch is None:
            try:
                from herringbone_entry.supervisor.watching.job_watch import JobWatch
            except ImportError:  # the package was removed while the job runs
                return

            self._watch = JobWatch(
                self._register.first, self._rank_hosts, order=self._order, later=self._later, on_fault=self._answer
            )
        self._watch.receive(host, event)

    def _answer(self, kind: str, failure: Failure) -> None:
        """Go on, stop or fail after a fault that was seen in a running job, as its policy says."""
        chosen = answer(kind, self._policies)
        if chosen == REPORT or self.phase is not Phase.RUNNING:
            return
        if chosen == STOP:
            text = f"stopping: so says the policy of {kind}"
            self._order({"kind": "say", "host": self._register.first, "text": text})
            self.phase = Phase.STOPPING
            self._job_stop.begin_after_fault(kind, failure)
        else:
            # Whatever ranks report of their end follows from ours.
            self._fail(Evidence(self._clock(), failure._replace(fault=kind), failure.exit_code, outside=True))
        self._advance()

    # Daemons of mpirun

    def _spawn(self, _host: str, spawn: Spawn) -> None:
        """Pass mpirun's request for a daemon to the host that it names."""
        hosts = self._register.hosts
        if spawn["host"] in hosts:
            self._order(spawn)
            return
        tail = [f"{spawn['host']} is none of this job's hosts, {', '.join(hosts)}"]
        number = spawn["number"]
        self._order(
            {"kind": "daemon_ended", "host": hosts[0], "number": number, "code": 1, "killed": False, "tail": tail}
        )

    def _daemon_ended(self, host: str, ended: DaemonEnded) -> None:
        self._order(ended)
        if ended["killed"] and self.phase in (Phase.RUNNING, Phase.FAILING):
            # mpirun blames a rank of this host, and kills those of the others.
            failure = lost_process(
                host, "mpirun's daemon ended before its ranks did", ended["code"], tuple(ended["tail"])
            )
            self._fail(Evidence(self._clock(), failure, ended["code"], outside=True))

    # Ending

    def _stop(self, host: str, stop: StopWanted) -> None:
        if self.phase is Phase.JOINING:
            self._end(*self._job_stop.end([None]))
        elif self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING
            self._job_stop.begin(host, stop)

    def _kill(self, host: str, _kill: object) -> None:
        self._order({"kind": "kill"})
        self._stop(host, {"kind": "stop", "why": "a second stop", "leaving": False})

    def _fail(self, evidence: Evidence) -> None:
        self._evidence.append(evidence)
        if self.phase is Phase.FAILING:
            return
        self.phase = Phase.FAILING
        # When only mpirun knows the signal that killed the rank, it must not see others die of our signals first.
        patience = SETTLE_SECONDS if evidence.code is None else 0.0
        if self._watch is not None and self._watch.look_at_failure(evidence.failure):
            patience = LOOK_SECONDS
        self._terminates_at = self._clock() + patience
        self._order({"kind": "abort", "after": patience})
        self._later(SETTLE_SECONDS, self._settle)
        # A host that hangs without being lost must not keep the others from ending.
        self._later(ABORT_SECONDS, self._end_failing)

    def _settle(self) -> None:
        self._settled = True
        self._advance()

    def _advance(self) -> None:
        """Move to the next phase if the last event was what this one waited for."""
        if self.phase in (Phase.JOINING, Phase.DONE):
            return
        if self.phase is Phase.STOPPING and not self._released:
            # Under mpirun the first rank that dies takes the others along, so all that can save do so before.
            saving = set(self._rank_hosts) - set(self._codes) - self._deferred
            if not saving:
                self._released = True
                self._order({"kind": "release"})
        launcher_ended = self._launcher_code is not None
        ranks_ended = len(self._codes) == len(self._rank_hosts)
        all_ended = ranks_ended and (launcher_ended or not self._register.has_launcher)
        if ranks_ended and not all_ended and not self._hurried and self.phase in (Phase.STOPPING, Phase.FAILING):
            self._hurried = True
            self._order({"kind": "hurry"})
        if self.phase is Phase.RUNNING and all_ended and self._crash is not None and len(self._over) < len(self._codes):
            self._fail(self._crash)
        elif self.phase in (Phase.RUNNING, Phase.CLOSING) and all_ended:
            self._end(0, None)
        elif self.phase is Phase.RUNNING and self._register.has_chief and self._codes.get(0) == 0:
            # The other ranks work for the chief alone, and some never end by themselves.
            self.phase = Phase.CLOSING
            self._order({"kind": "stop", "call": 0})
        elif self.phase is Phase.STOPPING and all_ended:
            self._end(*self._job_stop.end(self._codes.values()))
        elif (
            self.phase is Phase.FAILING and self._settled and self._register.all_heard and (all_ended or launcher_ended)
        ):
            # Ranks that have reported nothing when mpirun has ended never started.
            self._end_failing()

    def _end_failing(self) -> None:
        """End the job with the failure that came first."""
        if self.phase is not Phase.DONE:
            cause = first_cause(self._evidence, launcher_code=self._killed_code, may_be_ours=self._may_be_ours)
            if self._watch is not None:
                self._watch.explain(cause)
            ended = sorted(str(rank) for rank in self._over if self._codes[rank] == 0)
            if ended and cause.rank is not None:
                # The others lose their connections to it, and say no more than that.
                ranks = f"rank{'s' * (len(ended) > 1)} {', '.join(ended[:8])}"
                text = f"{ranks} had ended with exit code 0 when rank {cause.rank} failed"
                self._order({"kind": "say", "host": self._register.first, "text": text})
            self._end(cause.exit_code, cause)

    def _end(self, code: int, failure: Failure | None) -> None:
        self.phase = Phase.DONE
        self._finish = {"kind": "finish", "code": code, "failure": None if failure is None else failure.to_json()}
        self._order(self._finish)
