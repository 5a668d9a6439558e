"""The coordinator's checks before the ranks start: what hosts see of themselves and of each other. Does no I/O.

    look    each host's facts (`preflight`), where hosts are machines of their own
    local   each host's memory, disks and devices (`health`); an unfit host ends the job here, or is reported
    links   an all-reduce between the hosts that can, and the speed of their links

A stage ends when all hosts have answered, or after its time: a check that fails itself is reported, and stops no job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from herringbone_contract.failure import Failure
from herringbone_contract.faults import health
from herringbone_contract.faults.policies import REPORT, UNHEALTHY, answer
from herringbone_entry.health.preflight import PATIENCE_SECONDS
from herringbone_entry.supervisor.host_register import HostRegister

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Checked, Order

# An import of torch takes seconds where its files are not in memory; so does the start of a GPU's driver.
LOCAL_SECONDS, LINKS_SECONDS = 20.0, 15.0
# A host gives up this much earlier, and can still say why.
_MARGIN_SECONDS = 3.0
_LIMITS = {"look": PATIENCE_SECONDS, "local": LOCAL_SECONDS, "links": LINKS_SECONDS}
_MAX_EVENTS = 20


class StartChecks:
    """Checks the hosts of a job once, then calls `on_end` with the failure of an unfit host, or None.

    `infra_check` is the user's wish; None examines hosts that are several machines. Once the job `is_over`, nothing
    more happens.
    """

    def __init__(
        self,
        register: HostRegister,
        *,
        order: Callable[[Order], None],
        later: Callable[[float, Callable[[], None]], object],
        infra_check: bool | None,
        policies: Mapping[str, str],
        is_over: Callable[[], bool],
        on_end: Callable[[Failure | None], None],
    ) -> None:
        self._register, self._order, self._later = register, order, later
        self._infra_check, self._is_over, self._on_end = infra_check, is_over, on_end
        self._stage = ""
        # The hosts that are to answer in this stage, and those that have.
        self._asked, self._answered = set[str](), set[str]()
        self._reports: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []
        self._ends_job = answer(UNHEALTHY, policies) != REPORT

    def begin(self) -> None:
        """Begin with the first stage."""
        if self._register.across:
            names = [self._register.first, self._register.layout.master]
            self._begin({"ask": "look", "names": names}, self._register.hosts)
        else:
            self._examine()

    def take(self, host: str, checked: Checked, now: float) -> None:
        """Take a host's facts, or a part of its report, which arrived at the time `now`."""
        stage, report = checked["ask"], checked["report"]
        if stage == "look":
            self._register.add_facts(host, report, now)
        else:
            self._reports.setdefault(host, {}).update(report)
        if stage == self._stage:
            self._answered.add(host)
            if self._answered >= self._asked:
                self._end(stage)

    def _begin(self, request: dict[str, Any], hosts: Sequence[str]) -> None:
        self._stage = stage = str(request["ask"])
        self._asked, self._answered = set(hosts), set()
        # Processes of one machine may be a hundred, and as many of these programs would not fit there.
        addressee = None if self._register.across else self._register.first
        self._order({"kind": "check", "host": addressee, "request": request})
        self._later(_LIMITS[stage], lambda: self._end(stage))

    def _end(self, stage: str) -> None:
        if stage != self._stage or self._is_over():
            return
        self._stage = ""
        try:
            self._go_on(stage)
        except Exception as error:  # noqa: BLE001 - the reports come from drivers and libraries; no check ends a job
            text = f"health: not known: {type(error).__name__}: {error}"
            self._order({"kind": "say", "host": self._register.first, "text": text})
            self._on_end(None)

    def _go_on(self, stage: str) -> None:
        for host in self._asked - self._answered if stage != "look" else ():
            why = f"no answer within {_LIMITS[stage]:g} s"
            missing = {"trouble": f"devices and memory: {why}"} if stage == "local" else {"apart": why}
            self._reports.setdefault(host, {}).update(missing)
        if stage == "look":
            self._order({"kind": "say", "host": self._register.first, "text": self._register.report()})
            self._examine()
        elif stage == "local" and not (self._ends_job and any(one.unfit for one in health.judge(self._reports))):
            self._sum()
        else:
            self._conclude()

    def _examine(self) -> None:
        """Have each host examine itself, unless nobody wants it."""
        wanted = self._register.num_machines > 1 if self._infra_check is None else self._infra_check
        if wanted:
            hosts = self._register.hosts
            self._begin({"ask": "local"}, hosts if self._register.across else hosts[:1])
        else:
            self._conclude()

    def _sum(self) -> None:
        """Have the hosts that can sum with each other."""
        ordered = {host: self._reports[host] for host in self._register.hosts if host in self._reports}
        request = health.links_request(ordered, LINKS_SECONDS - _MARGIN_SECONDS)
        if request is None:
            if len(ordered) > 1 and any(report.get("trouble") for report in ordered.values()):
                able = [host for host, report in ordered.items() if report.get("backend")]
                which = f"{able[0]} alone" if able else "no host"
                self._notes.append(f"health: links between hosts were not measured: torch answered on {which}")
            self._conclude()
            return
        request["address"] = self._register.address_of(request["hosts"][0])
        self._begin(request, request["hosts"])

    def _conclude(self) -> None:
        """Report what was found, and let the job start or fail."""
        skews, facts = self._register.skews, self._register.facts
        seen = {host: {"skew": skews[host], "free_bytes": facts[host]["free_bytes"]} for host in facts}
        findings = health.judge(
            {host: seen.get(host, {}) | self._reports.get(host, {}) for host in self._register.hosts}
        )
        lines = [f"health: {host}: {health.line(report)}" for host, report in self._reports.items()]
        lines += self._notes
        lines += [f"warning: {finding}" for finding in findings]
        first = self._register.first
        if lines:
            self._order({"kind": "say", "host": first, "text": "\n".join(lines)})
        if self._reports:
            self._order({"kind": "check", "host": None, "request": {"ask": "end"}})
            for finding in findings[:_MAX_EVENTS]:
                event = {"kind": "fault", "fault": UNHEALTHY, "rank": None, "why": str(finding)}
                self._order({"kind": "emit", "host": first, "event": event})
        unfit = next((finding for finding in findings if finding.unfit), None)
        if unfit is not None and self._ends_job:
            self._on_end(Failure(unfit.host, message=f"{UNHEALTHY}: {unfit}", fault=UNHEALTHY))
        else:
            self._on_end(None)
