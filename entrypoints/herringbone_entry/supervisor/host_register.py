"""The coordinator's record of the hosts: who has come, with which ranks and ports, and what each host knows.

Nothing here decides or sends anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from herringbone_contract.layout import Layout, lay_out
from herringbone_entry.channel.rendezvous import Rendezvous, TensorFlowServers

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Facts, Ready

_LOOPBACK = "127.0.0.1"


class HostRegister:
    """Holds the reports of a job's hosts. `across` means that the hosts are machines of their own."""

    def __init__(self, hosts: Sequence[str], *, across: bool) -> None:
        self.hosts, self.across = hosts, across
        # Ranks of each host that has reported anything: 0 for a host that failed before it was ready.
        self.counts: dict[str, int] = {}
        # Reports of hosts that can start; a host that failed early has none.
        self._readies: dict[str, Ready] = {}
        self.facts: dict[str, Facts] = {}
        # Each host's clock minus the coordinator's, in seconds.
        self._skews: dict[str, float] = {}
        self._lost: set[str] = set()

    @property
    def first(self) -> str:
        """The host of the coordinator."""
        return self.hosts[0]

    @property
    def layout(self) -> Layout:
        """The ranks of the hosts that have reported."""
        return lay_out(self.counts)

    @property
    def missing(self) -> list[str]:
        """The hosts that have reported nothing."""
        return [host for host in self.hosts if host not in self.counts]

    @property
    def all_heard(self) -> bool:
        """True if each host has reported something or is lost."""
        return len(set(self.counts) | self._lost) == len(self.hosts)

    @property
    def skews(self) -> dict[str, float]:
        """Each host's clock minus the first host's, in seconds."""
        # The coordinator's own clock counts from an unknown start.
        base = self._skews.get(self.first, 0.0)
        return {host: skew - base for host, skew in self._skews.items()}

    @property
    def num_machines(self) -> int:
        """The number of machines of the hosts that have reported theirs."""
        return len({self._machine_of(host) for host in self.facts})

    @property
    def has_launcher(self) -> bool:
        """True if mpirun starts the ranks."""
        return any(ready["has_launcher"] for ready in self._readies.values())

    @property
    def has_chief(self) -> bool:
        """True if rank 0 is a chief, whose end is the end of the job."""
        return any(ready["has_chief"] for ready in self._readies.values())

    def add_ready(self, host: str, ready: Ready) -> None:
        """Note that a host can start."""
        self.counts[host], self._readies[host] = ready["processes"], ready

    def add_failed(self, host: str) -> None:
        """Note that a host has failed, perhaps before it was ready."""
        self.counts.setdefault(host, 0)

    def add_facts(self, host: str, facts: Facts, now: float) -> None:
        """Note a host's facts; `now` is the time at which they arrived, by the coordinator's clock."""
        self.facts[host] = facts
        # Off by the message's time on its way as well, which is about a millisecond.
        self._skews[host] = facts["wall"] - now

    def add_lost(self, host: str) -> None:
        """Note that a host is gone."""
        self._lost.add(host)

    def is_helper(self, host: str) -> bool:
        """Say whether a host has no ranks and sums gradients for the others."""
        return host in self._readies and self._readies[host]["server_port"] is not None

    def report(self) -> str:
        """Return the table of hosts, with a warning for each thing that may go wrong later."""
        from herringbone_entry.health.preflight import report

        return "\n".join(report(self.hosts, self.facts, self.skews))

    def rendezvous(self) -> Rendezvous:
        """Return the addresses and ports of rank 0's host, of helpers and of TensorFlow's servers."""
        layout = self.layout
        # Only the ports of rank 0's host count; every host has reserved some, because none knew then whether it has
        # rank 0.
        master = self._readies[layout.master]
        servers = tuple(
            TensorFlowServers(self.address_of(host), *self._readies[host]["tensorflow"])
            for host in layout.hosts
            if self._readies[host]["tensorflow"]
        )
        address = self._master_address(layout.master)
        listen = self._listen_address(layout)
        ports = (master["port"], master["reduce_port"])
        return Rendezvous(address, *ports, listen, self._helper_servers(), servers, self._unknown_names())

    def machine_ranks(self) -> dict[str, int]:
        """Return, for each host, the ranks of all hosts on its machine: containers may share one, processes do."""
        machines = {host: self._machine_of(host) for host in self.counts}
        totals: dict[str, int] = {}
        for host, count in self.counts.items():
            totals[machines[host]] = totals.get(machines[host], 0) + count
        return {host: totals[machine] for host, machine in machines.items()}

    def helper_advice(self) -> str | None:
        """Return advice about helper hosts that bring nothing; None when there are none, or they are useful."""
        ports = self._helper_ports()
        if not ports:
            return None
        from herringbone_contract.reduce_servers import advice

        return advice(training_hosts=len(self.layout.hosts), helpers=len(ports))

    def _machine_of(self, host: str) -> str:
        if not self.across:
            return "this machine"
        # A host that did not answer in time, or does not know, counts as a machine of its own.
        return (self.facts[host]["machine"] if host in self.facts else "") or host

    def _helper_servers(self) -> str:
        ports = self._helper_ports()
        if not ports:
            return ""
        from herringbone_contract.reduce_servers import ReduceServer, encode

        # In the order of the hosts: ranks number the servers by their position.
        return encode([ReduceServer(host, self.address_of(host), ports[host]) for host in self.hosts if host in ports])

    def _helper_ports(self) -> dict[str, int]:
        # Training hosts report None.
        return {host: port for host, ready in self._readies.items() if (port := ready["server_port"])}

    def _master_address(self, master: str) -> str:
        if not self.across:
            return _LOOPBACK
        from herringbone_entry.health.preflight import master_address

        return master_address(master, self.facts)

    def _listen_address(self, layout: Layout) -> str:
        if not self.across:
            return _LOOPBACK
        from herringbone_entry.health.preflight import listen_address

        return listen_address(layout.master, [host for host in layout.hosts if host != layout.master], self.facts)

    def _unknown_names(self) -> dict[str, str]:
        """Return the addresses of all hosts where some host does not know some name; empty where names resolve."""
        if self.across and not any(facts["unknown"] for facts in self.facts.values()):
            return {}
        return {host: address for host in self.hosts if (address := self.address_of(host)) != host}

    def address_of(self, host: str) -> str:
        """Return the address of a host for the others; the name of a host that did not report in time."""
        if not self.across:
            return _LOOPBACK
        facts = self.facts.get(host)
        # A name may still resolve later, so a missing address is no reason to give up.
        return (facts["address"] if facts is not None else None) or host
