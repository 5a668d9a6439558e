"""A network of machines in one process: keepers that agree on a job's attempts, over links that delay, lose and break.

Times are true seconds; each machine sees them through a clock of its own. `Network.run` checks after each step that
no two machines hold the lease, and that ranks of no two attempts run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random

from herringbone.backends.ssh.attempts.lease import PULSES, Answer, Ask, Entry, Member

SECONDS, MARGIN = 8.0, 2.0


class Machine:
    """A keeper: its part in the lease, and the number of the attempt whose ranks it runs, 0 for none."""

    def __init__(self, name: str, names: list[str], offset: float, rate: float) -> None:
        self.name, self.offset, self.rate = name, offset, rate
        self.member = Member(name, names, seconds=SECONDS, value={"machines": names}, now=self.clock(0.0))
        # The attempt whose ranks run here, and those that this holder has started.
        self.member.runs = 1
        self.started: set[tuple[int, int]] = set()

    def clock(self, true: float) -> float:
        return self.offset + self.rate * true


class Network:
    def __init__(self, count: int, seed: int) -> None:
        self.random = Random(seed)
        names = [f"m{number}" for number in range(count)]
        self.machines = {
            name: Machine(name, names, self.random.uniform(0, 1e4), self.random.uniform(0.98, 1.02)) for name in names
        }
        self.now, self.events, self.numbers = 0.0, [], itertools.count()
        # Directions that are cut, and machines that are down for good.
        self.cut: set[tuple[str, str]] = set()
        self.dead: set[str] = set()
        self.slow = 0.1
        self.loss = 0.02
        # Every attempt that had ranks, and the holders, in order.
        self.attempts, self.holders = [1], []
        for machine in self.machines.values():
            self.at(self.random.uniform(0, 0.5), lambda machine=machine: self.pulse(machine))

    def at(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.numbers), call))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.events and self.events[0][0] <= end:
            self.now, _, call = heapq.heappop(self.events)
            call()
            self.check()
        self.now = end

    def check(self) -> None:
        living = [machine for name, machine in self.machines.items() if name not in self.dead]
        holders = [machine.name for machine in living if machine.member.holds(machine.clock(self.now))]
        assert len(holders) <= 1, (self.now, holders)
        if holders and holders != self.holders[-1:]:
            self.holders += holders
        for machine in living:
            # The controller ends the ranks when the permit is over, whatever the keeper does.
            if machine.clock(self.now) >= machine.member.permit:
                machine.member.runs = 0
        running = {machine.member.runs for machine in living if machine.member.runs}
        assert len(running) <= 1, (self.now, running)

    def send(self, sender: str, receiver: str, call: Callable[[], None]) -> None:
        """Deliver a call, late or not at all; a cut direction loses it, also on its way."""
        late = self.random.expovariate(1 / self.slow)

        def arrive() -> None:
            if (sender, receiver) not in self.cut and not self.dead & {sender, receiver}:
                call()

        if self.random.random() >= self.loss and (sender, receiver) not in self.cut:
            self.at(late, arrive)

    def pulse(self, machine: Machine) -> None:
        if machine.name in self.dead:
            return
        now = machine.clock(self.now)
        for name, ask in machine.member.asks(now).items():
            self.send(machine.name, name, lambda name=name, ask=ask: self.hear(machine, self.machines[name], ask, now))
        if machine.member.holds(now):
            self.lead(machine, now)
        self.at(SECONDS / PULSES, lambda: self.pulse(machine))

    def hear(self, sender: Machine, receiver: Machine, ask: Ask, sent: float) -> None:
        member = receiver.member
        answer = member.hear(ask, receiver.clock(self.now))
        if 0 < member.runs < member.entry.attempt:
            # The keeper ends what is left of an older attempt, which takes a while.
            self.at(self.random.uniform(0, 1), lambda: self.end(member, member.entry.attempt))
        self.send(receiver.name, sender.name, lambda: self.take(sender, receiver, ask, answer, sent))

    def end(self, member: Member, newer: int) -> None:
        if member.runs < newer:
            member.runs = 0

    def take(self, sender: Machine, receiver: Machine, ask: Ask, answer: Answer, sent: float) -> None:
        sender.member.take(receiver.name, ask, answer, sent=sent, now=sender.clock(self.now))

    def lead(self, holder: Machine, now: float) -> None:
        """Start the attempt of the entry once all machines are clear of earlier ones; record the next when it ends."""
        member = holder.member
        attempt, machines = member.entry.attempt, member.entry.value["machines"]
        if not member.is_recorded:
            return
        if (member.term, attempt) not in holder.started:
            if all(member.is_clear(name, now, MARGIN) for name in member.members):
                holder.started.add((member.term, attempt))
                for name in machines:
                    self.start(holder, self.machines[name], member.term, attempt)
        # A holder looks at the hosts that it can reach, and takes others for lost.
        elif self.random.random() < 0.3 and not any(self.runs(holder, self.machines[name]) for name in machines):
            member.record(attempt + 1, {"machines": [name for name in member.members if self.hears(holder, name)]}, now)

    def runs(self, holder: Machine, machine: Machine) -> bool:
        return self.hears(holder, machine.name) and bool(machine.member.runs)

    def hears(self, holder: Machine, name: str) -> bool:
        return name not in self.dead and not {(holder.name, name), (name, holder.name)} & self.cut

    def start(self, holder: Machine, machine: Machine, term: int, attempt: int) -> None:
        def arrive() -> None:
            if machine.member.may_start(holder.name, term, attempt, machine.clock(self.now)):
                machine.member.runs = attempt
                self.attempts.append(attempt)

        self.send(holder.name, machine.name, arrive)

    def fail(self, share: float) -> None:
        """End the ranks on this share of the machines: those that hear of a fault."""
        for machine in self.machines.values():
            if self.random.random() < share:
                machine.member.runs = 0


def newest(network: Network) -> Entry:
    return max((machine.member.committed for machine in network.machines.values()), key=lambda entry: entry.key)
