"""What dead controllers left is removed, and nothing else; making things at once, and Ctrl-C meanwhile."""

import os
import platform
import signal
import threading

import pytest

from herringbone.backends.docker.cleanup import collect_garbage, labels_of
from herringbone.backends.docker.start import delay_interrupt, run_parallel
from herringbone.engine.client import EngineRefusal
from herringbone.jobs.home import Home
from herringbone.processes import identity


class Engine:
    """Has containers and networks, and notes what it is asked to remove; one is removed by somebody else just now."""

    def __init__(self, containers, networks, busy=()):
        self.objects = {"/containers/json": containers, "/networks": networks}
        self.busy = busy
        self.filters, self.removed = [], []

    def get(self, path, **query):
        self.filters.append(query["filters"]["label"])
        return self.objects[path]

    def delete(self, path, **query):
        self.removed.append(path)
        if path in self.busy:
            raise EngineRefusal(409, "removal is already in progress")


def test_only_what_has_no_living_controller_goes(tmp_path):
    home = Home(tmp_path)
    alive, dead = (labels_of("a", home, controller) for controller in (identity(os.getpid()), "4194304@1"))
    engine = Engine(
        [
            {"Id": "c1", "Names": ["/a-algo-1"], "Labels": dead},
            {"Id": "c2", "Names": ["/b-algo-1"], "Labels": alive},
            {"Id": "c3", "Names": ["/c-algo-1"], "Labels": {}},
        ],
        [{"Id": "n1", "Name": "a-hosts", "Labels": dead}, {"Id": "n2", "Name": "b-hosts", "Labels": alive}],
        busy=["/containers/c3"],
    )
    assert collect_garbage(engine, home) == ["a-algo-1", "c-algo-1", "a-hosts"]
    assert engine.removed == ["/containers/c1", "/containers/c3", "/networks/n1"]
    ours = [f"dev.herringbone.home={tmp_path}", f"dev.herringbone.machine={platform.node()}"]
    assert engine.filters == [ours, ours]
    collect_garbage(engine, home, job="a")
    assert engine.filters[-1] == [*ours, "dev.herringbone.job=a"]


def test_calls_made_at_once_all_return_before_an_error_is_raised():
    done = threading.Event()

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_parallel([fail, lambda: done.wait(0.05) or done.set()])
    assert done.is_set()


@pytest.fixture
def interruptible():
    """Where the tests were started with SIGINT ignored, Ctrl-C works all the same."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("times", "made"), [(1, ["whole"]), (2, [])])
def test_ctrl_c_waits_for_what_is_half_made_and_a_second_one_does_not(interruptible, times, made):
    found = []

    def make():
        with delay_interrupt():
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            found.append("whole")

    with pytest.raises(KeyboardInterrupt):
        make()
    assert found == made
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
