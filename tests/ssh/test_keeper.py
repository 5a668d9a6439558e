"""Tests of a keeper: strangers at its port cost their own connections, and a controller that stands still is ended."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

import msgspec
import pytest

from herringbone.backends.ssh.attempts.current import CurrentAttempt
from herringbone.backends.ssh.attempts.lease import Answer, Ask
from herringbone.backends.ssh.keepers.keeper import Keeper
from herringbone.backends.ssh.keepers.sealed import connect
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.controller.permit import lasting_clock
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone.system.processes import identity
from tests.waiting import wait_until

from .strangers import claim, garbage, held, say
from .test_gate import config  # noqa: F401 - a fixture

# A machine of the job is answered in this time, whatever strangers do.
ANSWER_SECONDS = 5.0


@pytest.fixture
def home(tmp_path):
    (home := Home(tmp_path / "work")).make()
    return home


def keeper_of(settings, home, listener):
    home.job(settings.job).path.mkdir(parents=True)
    machines = {name: Machine(name=name) for name in "ba"}
    settings = msgspec.structs.replace(
        settings,
        machines=machines,
        addresses={"a": ("127.0.0.1", 1)},
        attempt=msgspec.to_builtins(CurrentAttempt(machines=machines, name=settings.job)),
    )
    return Keeper(home, settings, listener, lambda *_: None)


@pytest.fixture
def keeper(config, home):  # noqa: F811
    """The key of a keeper that runs, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        keeper = keeper_of(config, home, listener)
        thread = threading.Thread(target=keeper.run)
        thread.start()
        yield config.key.encode(), listener.getsockname()[:2]
        # It leaves a job that was forgotten.
        shutil.rmtree(home.job(config.job).path)
        keeper.wake()
        thread.join()


class Peer:
    """The other machine of the job, which asks over a connection of its own."""

    def __init__(self, key, address):
        self.sealed = connect(address, key, me="a", peer="b", patience=30.0)
        self.sealed.send_message({"kind": "asks"})

    def asks(self, term=1):
        begun = time.monotonic()
        self.sealed.send_message(msgspec.to_builtins(Ask(term=term, candidate="a", probe=True)))
        assert isinstance(msgspec.convert(self.sealed.receive_message(), Answer), Answer)
        assert time.monotonic() < begun + ANSWER_SECONDS


def open_connections():
    return sum("socket:" in os.readlink(f"/proc/self/fd/{name}") for name in _descriptors())


def _descriptors():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.readlink(f"/proc/self/fd/{name}")
            yield name


def test_a_stranger_costs_its_own_connection_alone(keeper):
    key, address = keeper
    peer, chance, before = Peer(key, address), random.Random(7), open_connections()
    for _ in range(50):
        # Its challenge is all that a keeper says.
        assert garbage(address, chance).count(b"proof") == claim(address, chance).count(b"proof") == 0
        peer.asks()
    # More than a process may hold open, or the system has room for: some of them are refused.
    with held(address, 300), held(address, 30, slowly=True):
        peer.asks()
        second = Peer(key, address)
        second.asks()
        second.sealed.close()
    wait_until(lambda: open_connections() <= before + 1, seconds=10)
    peer.asks()
    peer.sealed.close()


def test_a_controller_that_stands_still_is_ended_a_heartbeat_after_its_permit(config, home):  # noqa: F811
    with subprocess.Popen(["sleep", "600"]) as process, socket.create_server(("127.0.0.1", 0)) as listener:
        keeper = keeper_of(config, home, listener)
        os.kill(process.pid, signal.SIGSTOP)
        row = {"plan": "{}", "created": 1.0, "controller": str(identity(process.pid))}
        JobIndex(home.index).add(JobRecord(name=config.job, backend="host", **row))
        keeper._look()
        assert process.poll() is None
        with keeper.member() as member:
            member.permit = lasting_clock() - config.margin
        keeper._look()
        assert process.wait(5) == -signal.SIGKILL


def test_recorded_frames_of_a_machine_of_the_job_are_worth_nothing(keeper):
    key, address = keeper
    recorded = []
    with socket.create_server(("127.0.0.1", 0)) as tap:

        def forward():
            inside, _ = tap.accept()
            with inside, socket.create_connection(address) as outside:
                threading.Thread(target=copy, args=(outside, inside, lambda _: None), daemon=True).start()
                copy(inside, outside, recorded.append)

        def copy(source, target, note):
            with contextlib.suppress(OSError):
                while chunk := source.recv(65_536):
                    note(chunk)
                    target.sendall(chunk)

        thread = threading.Thread(target=forward)
        thread.start()
        peer = Peer(key, tap.getsockname()[:2])
        peer.asks()
        peer.sealed.close()
        thread.join()
    data = b"".join(recorded)
    assert b"proof" in data
    assert b'"probe"' in data
    assert b"proof" not in say(address, data)
    honest = Peer(key, address)
    honest.asks()
    honest.sealed.close()
