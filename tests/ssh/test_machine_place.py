"""A place in the line of one `ssh:` machine, without a machine."""

import pytest

from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.waiter import MachinePlace
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
