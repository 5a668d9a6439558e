"""Garbage collection of objects without a controller; parallel creation, and Ctrl-C during it."""

import os
import platform
import signal
import threading

import pytest

from herringbone.backends.docker.cleanup import collect_garbage, labels_of
from herringbone.backends.docker.start import delay_interrupt, run_parallel
from herringbone.engine.client import EngineRefusal
from herringbone.records.home import Home
from herringbone.system.processes import identity


class Engine:
    """Has containers and networks and records removals; objects in `busy` are just being removed by somebody else."""

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


def test_only_objects_without_a_living_controller_are_removed(tmp_path):
    home = Home(tmp_path)
    alive, dead = (labels_of("a", home, controller) for controller in (identity(os.getpid()), "4194304@1"))
    # Nobody here can know whether that controller lives.
    elsewhere = {**dead, "dev.herringbone.place": "node-2 a2 boot-2 pid:[4026531836]"}
    engine = Engine(
        [
            {"Id": "c0", "Names": ["/z-algo-1"], "Labels": elsewhere},
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


def test_all_parallel_calls_return_before_an_error_is_raised():
    done = threading.Event()

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_parallel([fail, lambda: done.wait(0.05) or done.set()])
    assert done.is_set()


@pytest.fixture
def interruptible():
    """Makes Ctrl-C work, also if the tests were started with SIGINT ignored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize(("times", "finished"), [(1, ["whole"]), (2, [])])
def test_the_first_ctrl_c_is_delayed_and_the_second_is_not(interruptible, times, finished):
    reached = []

    def create():
        with delay_interrupt():
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
            reached.append("whole")

    with pytest.raises(KeyboardInterrupt):
        create()
    assert reached == finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
