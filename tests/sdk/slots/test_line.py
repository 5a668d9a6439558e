"""The order of the line and the decision about one job, by literals and by random lines."""

import random

import pytest

from herringbone.backends.waiter import pause_after
from herringbone.slots.devices import Devices
from herringbone.slots.line import Granted, Waiting, can_ever_start, decide, in_order, line_text, places
from herringbone.slots.ticket import Ticket, Wants

FOUR = Devices(gpus=("g0", "g1", "g2", "g3"))
ANN, BOB, CEM = 1, 2, 3


def ticket(job, uid=ANN, *, gpus=1, shares=0, among=(), beside=False, at=None, **fields):
    user = {ANN: "ann", BOB: "bob", CEM: "cem"}.get(uid, str(uid))
    fields = {"arrival": 0.0, "granted_at": at, **fields}
    wants = Wants(gpus=gpus, shares=shares, among=among, beside_foreign=beside)
    return Ticket(name=f"{uid}.{job}.{0:012x}", job=job, user=user, wants=wants, **fields)


def order(tickets, turns=None):
    return [ticket.job for ticket in in_order(tickets, turns or {})]


def decisions(tickets, devices=FOUR, turns=None):
    waiting = [ticket for ticket in tickets if ticket.waits]
    return {ticket.job: decide(tickets, devices, turns or {}, ticket.name) for ticket in waiting}


def test_one_user_is_served_in_the_order_of_arrival():
    assert order([ticket("b", arrival=2), ticket("c", arrival=3), ticket("a", arrival=1)]) == ["a", "b", "c"]


def test_priority_goes_first():
    line = [ticket("a", arrival=1), ticket("b", arrival=2, priority=1), ticket("c", arrival=3, priority=-1)]
    assert order(line) == ["b", "a", "c"]


def test_every_users_first_job_is_before_anyones_second():
    line = [
        ticket("a1", arrival=1),
        ticket("a2", arrival=2),
        ticket("b1", BOB, arrival=3),
        ticket("b2", BOB, arrival=4),
    ]
    assert order(line) == ["a1", "b1", "a2", "b2"]


def test_a_user_whose_job_was_granted_goes_behind_those_who_waited_then():
    line = [ticket("a2", arrival=2), ticket("b1", BOB, arrival=3), ticket("c1", CEM, arrival=6)]
    assert order(line) == ["a2", "b1", "c1"]
    # Ann's first job was granted at 5: after Bob's arrival, before Cem's.
    assert order(line, {ANN: 5.0}) == ["b1", "a2", "c1"]


def test_the_first_jobs_that_fit_start_side_by_side():
    line = [ticket("a", arrival=1, gpus=2), ticket("b", arrival=2), ticket("c", arrival=3, gpus=2)]
    assert decisions(line) == {
        "a": Granted(("g0", "g1")),
        "b": Granted(("g2",)),
        "c": Waiting(3, (), (line[0], line[1])),
    }


def test_a_small_job_does_not_take_what_the_first_one_waits_for():
    running = ticket("r", BOB, granted=("g0",), at=1.0)
    line = [running, ticket("all", arrival=1, gpus=4), ticket("small", CEM, arrival=2)]
    assert decisions(line) == {
        "all": Waiting(1, (running,)),
        "small": Waiting(2, (running,), (line[1],)),
    }


def test_a_later_job_may_take_what_no_earlier_one_can_use():
    running = ticket("r", granted=("g0",))
    line = [running, ticket("picky", arrival=1, among=("g0",)), ticket("any", BOB, arrival=2, gpus=3)]
    assert decisions(line)["any"] == Granted(("g1", "g2", "g3"))
    assert decisions(line)["picky"] == Waiting(1, (running,))


def test_a_job_that_waits_for_cpu_shares_keeps_only_the_gpus_that_it_wants():
    machine = Devices(gpus=("g0", "g1"), shares=2)
    running = ticket("r", gpus=0, shares=1, granted=("cpu-share-1",))
    line = [running, ticket("both", arrival=1, gpus=1, shares=2), ticket("gpu", arrival=2), ticket("more", arrival=3)]
    assert decisions(line, machine)["gpu"] == Granted(("g1",))
    assert isinstance(decisions(line, machine)["more"], Waiting)


def test_a_job_that_the_machine_can_never_serve_keeps_nobody_waiting():
    line = [ticket("huge", arrival=1, gpus=5), ticket("a", BOB, arrival=2, gpus=4)]
    assert decisions(line)["a"] == Granted(("g0", "g1", "g2", "g3"))
    assert isinstance(decisions(line)["huge"], Waiting)
    assert not can_ever_start(line[0].wants, FOUR)


def test_a_gpu_that_others_use_is_taken():
    machine = Devices(gpus=("g0", "g1"), foreign={"g0": "process 7"})
    line = [ticket("a", arrival=1), ticket("b", arrival=2)]
    assert decisions(line, machine) == {"a": Granted(("g1",)), "b": Waiting(2, (), (line[0],), (("g0", "process 7"),))}


def test_a_job_that_asked_for_no_gpus_runs_beside_other_programs():
    machine = Devices(gpus=("g0", "g1"), foreign={"g0": "process 7"})
    whole, after = ticket("whole", gpus=2, beside=True, arrival=1), ticket("after", arrival=2)
    assert decisions([whole, after], machine) == {
        "whole": Granted(("g0", "g1")),
        "after": Waiting(2, (), (whole,), (("g0", "process 7"),)),
    }
    # Other jobs are no foreign programs.
    running = ticket("r", BOB, granted=("g1",))
    assert decisions([whole, running], machine) == {"whole": Waiting(1, (running,))}


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd"), (113, "113th")]
)
def test_places_are_ordinal_numbers(number, word):
    assert line_text(Waiting(number)) == f"{word} in line"


def test_the_text_names_who_has_the_devices_or_who_is_before():
    running = [ticket(f"r{number}", BOB, granted=(f"g{number}",), at=number) for number in range(4)]
    assert line_text(Waiting(1, tuple(running))) == "1st in line, waits for r0 (bob), r1 (bob) and 2 more"
    assert line_text(Waiting(2, (), (ticket("a"),))) == "2nd in line, waits for a (ann)"
    assert line_text(Waiting(1), "process 7 on g0") == "1st in line, waits for process 7 on g0"


def test_places_need_no_look_at_the_devices():
    running = ticket("r", BOB, granted=("g0",))
    line = [ticket("a", arrival=1), ticket("b", arrival=2), running]
    texts = {job.job: line_text(waiting) for job, waiting in places(line, {})}
    assert texts == {"a": "1st in line, waits for r (bob)", "b": "2nd in line, waits for r (bob)"}


def test_a_slow_look_does_not_make_the_first_ones_sleep_for_minutes():
    assert pause_after(Waiting(1), 10.0, 1) <= 10.0


class Machine:
    """A machine whose waiters act one at a time, in any order, as processes do."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.now, self.tickets, self.turns, self.granted = 0.0, {}, {}, []

    def arrive(self, number):
        job = ticket(
            f"j{number}", self.chance.choice((ANN, BOB, CEM)), arrival=self.now, gpus=self.chance.choice((1, 1, 2, 4)),
            priority=0,
        )  # fmt: skip
        self.tickets[job.name] = job

    def look(self, name):
        line = list(self.tickets.values())
        decision = decide(line, FOUR, self.turns, name)
        if isinstance(decision, Granted):
            taken = {device for other in line for device in other.granted or ()}
            assert not taken.intersection(decision.devices), "a GPU is given twice"
            job = self.tickets[name]
            fields = {field: getattr(job, field) for field in job.__struct_fields__}
            self.tickets[name] = Ticket(**{**fields, "granted": decision.devices, "granted_at": self.now})
            self.turns[job.uid] = self.now
            self.granted.append(job)

    def step(self):
        self.now += 1.0
        names = [name for name, job in self.tickets.items() if job.waits]
        running = [name for name, job in self.tickets.items() if not job.waits]
        # Any process may die at any time: a running job, or a waiting one.
        if running and self.chance.random() < 0.3:
            del self.tickets[self.chance.choice(running)]
        for name in self.chance.sample(names, k=min(len(names), 3)):
            self.look(name)


@pytest.mark.parametrize("seed", range(20))
def test_in_any_line_no_gpu_is_given_twice_and_every_job_starts(seed):
    machine = Machine(seed)
    for number in range(40):
        machine.arrive(number)
        machine.step()
    for _ in range(2000):
        machine.step()
    assert len(machine.granted) == 40


@pytest.mark.parametrize("seed", range(20))
def test_a_job_that_cannot_start_is_never_delayed_by_a_later_one(seed):
    """Remove all later jobs from the line: whatever it got from then on, it gets at the same moment with them."""
    chance = random.Random(seed)
    line = [
        ticket(f"j{number}", chance.choice((ANN, BOB, CEM)), arrival=number, gpus=chance.choice((1, 2, 3, 4)))
        for number in range(12)
    ]
    running = [ticket(f"r{number}", granted=(f"g{number}",)) for number in range(chance.randint(1, 4))]
    every = [*running, *line]
    ordered = in_order(every, {})
    for position, job in enumerate(ordered):
        before = [*running, *ordered[: position + 1]]
        alone, together = decide(before, FOUR, {}, job.name), decide(every, FOUR, {}, job.name)
        assert alone == together


def test_jobs_of_a_user_who_submits_a_hundred_do_not_starve_another():
    line = [ticket(f"a{number}", arrival=number) for number in range(100)]
    turns, machine = {}, Devices(gpus=("g0",))
    line.append(ticket("b", BOB, arrival=50.0))
    started = []
    for now in range(100, 105):
        first = in_order(line, turns)[0]
        assert decide(line, machine, turns, first.name) == Granted(("g0",))
        started.append(first.job)
        line.remove(first)
        turns[first.uid] = float(now)
    assert started[:3] == ["a0", "b", "a1"]
