"""Jobs that wait in the lines of several machines: one order in all lines, and no two jobs wait for each other."""

import random

import msgspec
import pytest

from herringbone.slots.devices import Devices
from herringbone.slots.line import Granted, decide, in_order, own_numbers
from herringbone.slots.ticket import Ticket, Wants

ANN, BOB, CEM = 1, 2, 3
TWO = Devices(gpus=("g0", "g1"))


def ticket(job, uid, arrival, *, gpus=2, **fields):
    name = f"{uid}.{job}.{0:012x}"
    return Ticket(name=name, job=job, user=str(uid), wants=Wants(gpus=gpus), arrival=arrival, **fields)


def jobs(tickets, turns=None):
    return [one.job for one in in_order(tickets, turns or {})]


def test_a_users_second_job_on_one_machine_is_the_second_one_on_all():
    """Without the note, `wide` would wait for `other` on h-1, and `other` for `wide` on h-2, for ever."""
    small, wide, other = ticket("small", ANN, 1.0), ticket("wide", ANN, 2.0), ticket("other", BOB, 3.0)
    assert jobs([small, wide, other]) == ["small", "other", "wide"]
    assert jobs([wide, other]) == ["wide", "other"]
    assert own_numbers([small, wide, other], {}, wide.name) == (1, 0.0)
    noted = msgspec.structs.replace(wide, number=1)
    assert jobs([small, noted, other]) == ["small", "other", "wide"]
    assert jobs([noted, other]) == ["other", "wide"]


def test_a_grant_on_one_machine_counts_on_all():
    wide, other = ticket("wide", ANN, 2.0), ticket("other", BOB, 3.0)
    # On h-1, Ann's last job was granted at 5.
    assert jobs([wide, other], {ANN: 5.0}) == ["other", "wide"]
    assert own_numbers([wide, other], {ANN: 5.0}, wide.name) == (0, 5.0)
    assert jobs([msgspec.structs.replace(wide, turn=5.0), other]) == ["other", "wide"]


def test_an_old_note_puts_no_job_behind_a_later_one_of_its_user():
    # `first` was the sixth when it last looked, and `second` has looked since.
    first, second = ticket("first", ANN, 1.0, number=5, turn=9.0), ticket("second", ANN, 2.0, number=1)
    assert jobs([first, second]) == ["first", "second"]
    assert own_numbers([first, second], {}, first.name) == (0, 0.0)
    assert own_numbers([first, second], {}, second.name) == (5, 9.0)


class Machines:
    """Machines with two GPUs each, whose waiters act one at a time, in any order, as processes do."""

    def __init__(self, seed, count=3, *, notes=True):
        self.chance, self.notes, self.now = random.Random(seed), notes, 0.0
        self.lines = [{} for _ in range(count)]
        self.turns = [{} for _ in range(count)]
        # By job: its machines, and how many of them it needs at once.
        self.waiting, self.running, self.started = {}, {}, []

    def arrive(self, number):
        uid, machines = self.chance.choice((ANN, BOB, CEM)), range(len(self.lines))
        among = self.chance.sample(machines, self.chance.randint(1, len(machines)))
        job = ticket(f"j{number}", uid, self.now, gpus=self.chance.randint(1, 2))
        for machine in among:
            self.lines[machine][job.name] = job
        self.waiting[job.name] = (among, self.chance.randint(1, len(among)))

    def look(self, name):
        among, needed = self.waiting[name]
        found = [own_numbers([*self.lines[m].values()], self.turns[m], name) for m in among]
        if self.notes:
            for machine in among:
                self.lines[machine][name] = msgspec.structs.replace(
                    self.lines[machine][name], number=max(n for n, _ in found), turn=max(turn for _, turn in found)
                )
        decisions = {m: decide([*self.lines[m].values()], TWO, self.turns[m], name) for m in among}
        ready = [machine for machine in among if isinstance(decisions[machine], Granted)][:needed]
        if len(ready) < needed:
            return
        for machine in among:
            job = self.lines[machine].pop(name)
            if machine in ready:
                taken = {gpu for other in self.lines[machine].values() for gpu in other.granted or ()}
                assert not taken.intersection(decisions[machine].devices), "a GPU is given twice"
                self.lines[machine][name] = msgspec.structs.replace(job, granted=decisions[machine].devices)
                self.turns[machine][job.uid] = self.now
        del self.waiting[name]
        self.running[name] = ready
        self.started.append(name)

    def step(self):
        self.now += 1.0
        for name in self.chance.sample(sorted(self.running), k=min(len(self.running), self.chance.randint(0, 1))):
            for machine in self.running.pop(name):
                del self.lines[machine][name]
        for name in self.chance.sample(sorted(self.waiting), k=min(len(self.waiting), 3)):
            self.look(name)


def run(seed, **options):
    machines = Machines(seed, **options)
    for number in range(25):
        machines.arrive(number)
        machines.step()
    for _ in range(600):
        machines.step()
        if not machines.waiting:
            break
    return len(machines.started)


@pytest.mark.parametrize("seed", range(12))
def test_every_job_gets_its_machines(seed):
    assert run(seed) == 25


def test_without_the_notes_jobs_wait_for_each_other():
    assert any(run(seed, notes=False) < 25 for seed in range(40))
