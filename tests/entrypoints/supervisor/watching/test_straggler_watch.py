"""The coordinator's part in finding stragglers, with literal messages: no process, no clock of its own."""

import pytest

from herringbone_entry.supervisor.watching.printer import Printer
from herringbone_entry.supervisor.watching.straggler_watch import StragglerWatch

HOSTS = {0: "algo-1", 1: "algo-2", 2: "algo-3"}
USUAL = {"cpu": 0.5}
# Clocks of the hosts, and the seconds of an order on its way to a host and of the answer on its way back.
WALLS = {"algo-1": 1000.0, "algo-2": 5000.0, "algo-3": -70.0}
WAY = 0.001


class Job:
    """Plays the hosts, whose ranks take a step a second; `late` is how much later each enters its operation."""

    def __init__(self, hosts=HOSTS):
        self.orders, self.timers, self.faults = [], [], []
        self.now, self.steps, self.walls = 0.0, 0, dict(WALLS)
        self.watch = StragglerWatch(
            hosts,
            printer=Printer("algo-1", self.orders.append),
            order=self.orders.append,
            later=lambda *timer: self.timers.append(timer),
            clock=lambda: self.now,
            on_fault=lambda *fault: self.faults.append(fault),
        )
        self.watch.steps("algo-1", {"kind": "steps", "seconds": {}, "facts": {}})

    def look(self, *late, facts=None, missing=(), cost=0.0, steps=30):
        """Have one look taken after so many more steps; return the seconds until the next one."""
        self.now += steps
        self.steps += steps
        [(_, look)] = self.timers
        self.timers.clear()
        look()
        asks, self.timers = self.timers, []
        for _, ask in asks:
            ask()
            order = self.orders.pop()
            self._answer(order, late, facts or {}, missing, cost)
        [(_, judge)] = self.timers
        self.timers.clear()
        judge()
        [(pause, _)] = self.timers
        return pause

    def _answer(self, order, late, facts, missing, cost):
        sent = self.now
        for host, wall in self.walls.items():
            # The last order of a look finds a busy host, whose answer is late.
            self.now = sent + 2 * WAY + (0.8 if order["steps"] else 0.0)
            self.watch.clock(host, {"kind": "clock", "id": order["id"], "wall": wall + sent + WAY})
        for rank in HOSTS if order["steps"] else ():
            last = min(order["steps"], self.steps)
            origin = self.walls[HOSTS[rank]] + self.now - last
            entered = [
                [self.steps + number, number * 1_000_000 - 500_000 + int(late[rank] * 1e6)] for number in range(1, last)
            ]
            record = {
                "origin": origin,
                "number": self.steps - last,
                "ends": [number * 1_000_000 for number in range(last)],
                "entered": {"default_pg": entered},
                "cost": cost,
            }
            event = {"kind": "times", "id": order["id"], "rank": rank, "facts": facts.get(rank, USUAL)}
            self.watch.times(HOSTS[rank], event | {"record": None if rank in missing else record})

    @property
    def lines(self):
        return [order["text"] for order in self.orders if order["kind"] == "say"]


def test_a_rank_that_enters_late_is_named_once_with_its_host_and_its_cause():
    job = Job()
    job.look(0.0, 0.3, 0.0, facts={1: {"cpu": 0.3, "cores": 0.4}})
    job.look(0.0, 0.3, 0.0)
    [say, emit] = job.orders
    text = "straggler: rank 1 (algo-2) needs 1 s for a step, 1.42 times the median of all ranks, 0.702 s, over 20 steps"
    assert say == {
        "kind": "say",
        "host": "algo-1",
        "text": f"{text}: other processes use its cores, in 40 % of the time",
    }
    # The event counts for the host that prints it.
    assert (emit["host"], emit["event"]["rank"], emit["event"]["why"]) == (
        "algo-2",
        1,
        "other processes use its cores, in 40 % of the time",
    )
    [(kind, failure)] = job.faults
    assert (kind, failure.host, failure.rank) == ("straggler", "algo-2", 1)


def test_a_rank_that_is_late_in_most_steps_only_is_not_named():
    job = Job()
    for late in (0.3, 0.0, 0.3, 0.0):
        job.look(0.0, late, 0.0, steps=15)
    assert job.orders == []


def test_an_answer_that_is_missing_names_nobody_and_later_steps_do():
    job = Job()
    job.look(0.0, 0.45, 0.0, steps=10)
    job.look(0.0, 0.45, 0.0, missing={0})
    assert job.orders == []
    job.look(0.0, 0.45, 0.0)
    assert len(job.lines) == 1


def test_a_clock_that_somebody_sets_names_nobody():
    job = Job()
    job.look(0.0, 0.0, 0.0)
    job.walls["algo-2"] += 0.4
    job.look(0.0, 0.4, 0.0)
    assert job.orders == []
    # As it stands, it is as good as any.
    job.look(0.0, 0.0, 0.0)
    assert job.orders == []


def test_looks_cost_a_thousandth_of_the_time():
    job = Job()
    assert job.look(0.0, 0.0, 0.0, cost=0.001) == 5.0
    assert job.look(0.0, 0.0, 0.0, cost=0.05) == pytest.approx(50.0)
    assert job.look(0.0, 0.0, 0.0, cost=9.0) == 120.0
    assert job.look(0.0, 0.0, 0.0, missing={0, 1, 2}) == 5.0


def test_a_lone_rank_is_not_looked_at():
    assert Job(hosts={0: "algo-1"}).timers == []


def test_answers_of_strangers_and_to_other_looks_are_ignored():
    job = Job()
    record = {"origin": 0.0, "number": 0, "ends": [0], "entered": {}, "cost": 0.0}
    job.watch.times("algo-1", {"id": 99, "rank": 0, "record": record, "facts": {}})
    job.watch.clock("algo-1", {"id": 99, "wall": 5.0})
    assert job.look(0.0, 0.0, 0.0, missing={0, 1, 2}) == 5.0
