"""A place in the line of one `ssh:` machine, without a machine; and the life of all waiters."""

import os
import signal
import time

import pytest

from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.waiter import MachinePlace
from herringbone.backends.waiter import JobWaiter
from herringbone.records.index import PENDING, JobIndex, JobRecord
from herringbone_contract.errors import HostError


class Transport:
    """Connects to a machine whose agent answers nonsense, or to none."""

    def __init__(self, error):
        self._error = error

    def connect(self, machine):
        raise self._error


def place_of(error, changed):
    machine = Machine(name="h-1", host="h-1")
    return MachinePlace(machine, Transport(error), {}, worst=lambda: (0, 0.0), changed=changed)


def test_an_error_that_nobody_expects_is_kept_for_the_waiter():
    changes = []
    place = place_of(ValueError("nonsense"), lambda: changes.append(1))
    place.start()
    place.join(10)
    assert not place.is_alive()
    assert (str(place.error), changes) == ("nonsense", [1])


def test_a_broken_connection_is_no_claim():
    place = place_of(HostError("h-1: no such host"), lambda: place.close())  # after one look
    place.start()
    place.join(10)
    with pytest.raises(HostError, match=r"the connection broke when the job had its turn: no such host; submit"):
        place.hand_over()


class Interrupted(JobWaiter):
    """A waiter that is asked to stop while it takes its machines."""

    def __init__(self, home):
        super().__init__("a", deadline=None)
        self._home_of_job, self.calls = home, []

    @property
    def _home(self):
        return self._home_of_job

    def _take(self):
        os.kill(os.getpid(), signal.SIGTERM)

    def _leave(self):
        self.calls.append("leave")

    def _start(self):
        self.calls.append("start")


def test_a_stop_that_comes_while_machines_are_taken_gives_them_back(home):
    home.make()
    index = JobIndex(home.index)
    index.add(JobRecord(name="a", backend="ssh", plan="{}", created=time.time(), secondary_status=PENDING))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        waiter = Interrupted(home)
        waiter.run()
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
    assert (waiter.calls, index.get("a").status) == (["leave"], "Stopped")
