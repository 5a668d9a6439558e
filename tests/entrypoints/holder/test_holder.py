"""Holders as processes: two or three of one job, ranks that speak to them, strangers, and deaths."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.waiting import wait_until

from herringbone_contract.memory import link

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sealed memfds are Linux's")

SAVE, NEXT, THIRD = "0" * 15 + "1", "0" * 15 + "2", "0" * 15 + "3"


class Holders:
    """The holders of one job on this machine, which listen to each other at `kind` of addresses."""

    def __init__(self, folder, hosts, *, limit=1 << 20, idle=60.0, key="secret", addresses=None):
        self.folder, self.hosts, self.processes = folder, hosts, {}
        self.config = {"limit": limit, "idle": idle, "key": key}
        self.addresses = addresses or {host: f"unix:{folder}/{host}.peer" for host in hosts}

    def start(self, host, **changes):
        config = {**self.config, "host": host, "path": self.path(host), "peers": self.addresses}
        place = self.hosts.index(host)
        config["neighbour"] = self.hosts[(place + 1) % len(self.hosts)] if len(self.hosts) > 1 else None
        process = subprocess.Popen(
            [sys.executable, "-m", "herringbone_entry.holder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        process.stdin.write(json.dumps({**config, **changes}).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"listens for {host}\n".encode()
        self.processes[host] = process
        return process

    def path(self, host):
        return f"{self.folder}/{host}.rank"

    def kill(self, host):
        process = self.processes.pop(host)
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def put(self, host, save, name, content, step=1):
        descriptor = link.new_file(name)
        os.write(descriptor, content)
        link.close_file(descriptor)
        try:
            return link.ask(self.path(host), {"do": "put", "save": save, "step": step, "name": name}, descriptor)[0]
        finally:
            os.close(descriptor)

    def save(self, host, save, step=1):
        self.put(host, save, f"rank-{host}", f"{host}'s part".encode(), step)
        self.put(host, save, "manifest.json", b"{}", step)

    def get(self, host, save, name):
        _, descriptor = link.ask(self.path(host), {"do": "get", "save": save, "name": name, "hosts": self.hosts})
        with os.fdopen(descriptor, "rb") as file:
            file.seek(0)
            return file.read()

    def list(self, host):
        _, descriptor = link.ask(self.path(host), {"do": "list"})
        with os.fdopen(descriptor, "rb") as file:
            file.seek(0)
            return sorted(map(tuple, json.load(file)))

    def room(self, host):
        return link.ask(self.path(host), {"do": "room"})[0]

    def keep(self, host, save, names=()):
        found = dict.fromkeys(names, self.hosts)
        link.ask(self.path(host), {"do": "keep", "save": save, "step": 1, "names": found})


@pytest.fixture
def holders(tmp_path):
    started = []

    def make(hosts=("a", "b"), **options):
        folder = tmp_path / str(len(started))
        folder.mkdir(0o700)
        started.append(one := Holders(folder, list(hosts), **options))
        for host in hosts:
            one.start(host)
        return one

    yield make
    for one in started:
        for process in one.processes.values():
            process.communicate(timeout=10)
            assert process.returncode == 0


def test_a_save_is_copied_to_the_neighbour_and_outlives_the_holder(holders):
    job = holders()
    job.save("a", SAVE)
    job.save("b", SAVE)
    wait_until(lambda: job.room("a")["copied"] and job.room("b")["copied"])
    job.kill("a")
    assert job.get("b", SAVE, "rank-a") == b"a's part"
    job.start("a")
    # A new holder has nothing of its own, and finds all at the others.
    assert job.list("a") == []
    assert job.get("a", SAVE, "rank-a") == b"a's part"
    # What a resume keeps comes back to its own holder, and the copy that was lost with it.
    job.keep("a", SAVE, ["rank-a", "manifest.json"])
    job.keep("b", SAVE, ["rank-b", "manifest.json"])
    wait_until(lambda: job.room("a")["copied"] and job.room("b")["copied"])
    job.kill("b")
    assert (job.get("a", SAVE, "rank-a"), job.get("a", SAVE, "rank-b")) == (b"a's part", b"b's part")


def test_two_saves_are_kept_and_one_that_was_never_whole_makes_room_first(holders):
    job = holders(["a"])
    job.save("a", SAVE, 1)
    job.put("a", NEXT, "rank-a", b"cut", 2)
    job.save("a", THIRD, 3)
    # The newest is written over the cut one: the whole one before it is still there.
    assert {(save, step) for save, step, _ in job.list("a")} == {(SAVE, 1), (THIRD, 3)}
    job.put("a", NEXT, "rank-a", b"again", 4)
    assert {save for save, _, _ in job.list("a")} == {NEXT, THIRD}
    job.keep("a", "")
    assert job.list("a") == []


def test_a_holder_refuses_what_no_rank_of_ours_sends(holders):
    job = holders(["a"], limit=1000)
    with pytest.raises(link.HolderError, match="do not fit: 0 of 1000 bytes"):
        job.put("a", SAVE, "rank-a", bytes(1001))
    for save, name in (("../x", "rank-a"), (SAVE, "../rank"), (SAVE, ""), (SAVE, ".hidden"), ("A" * 16, "rank-a")):
        with pytest.raises(link.HolderError, match="no file of a save"):
            job.put("a", save, name, b"")
    # A file that its sender could still change.
    with pytest.raises(link.HolderError, match="no sealed file"):
        link.ask(job.path("a"), {"do": "put", "save": SAVE, "step": 1, "name": "x"}, os.open("/dev/null", os.O_RDONLY))
    with pytest.raises(link.AbsentError):
        job.get("a", SAVE, "rank-a")
    for body in (b"", b"no json", b"[" * 30_000, b"[]", b'{"do": "keep"}', b'{"do": "put", "save": 1}', b"\xff"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(job.path("a"))
            with suppress(OSError):
                stranger.send(body)
            stranger.settimeout(10)
            with suppress(link.HolderError, ConnectionError):
                answer = link.receive(stranger)
                assert answer is None or "error" in answer[0], body
    # Descriptors that came with no request are closed again.
    before = len(os.listdir(f"/proc/{job.processes['a'].pid}/fd"))
    for _ in range(20):
        with pytest.raises(link.HolderError, match="no request"):
            link.ask(job.path("a"), {"do": "nothing"}, 0)
    wait_until(lambda: len(os.listdir(f"/proc/{job.processes['a'].pid}/fd")) <= before)


def test_a_full_holder_drops_the_save_that_does_not_fit_and_keeps_the_whole_one(holders):
    job = holders(["a"], limit=1000)
    job.save("a", SAVE)
    with pytest.raises(link.HolderError, match="do not fit"):
        job.put("a", NEXT, "rank-a", bytes(995), 2)
    assert {save for save, _, _ in job.list("a")} == {SAVE}
    job.save("a", NEXT, 2)


def test_strangers_at_the_port_between_holders_hold_up_nobody(holders):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = one.getsockname()[1], two.getsockname()[1]
    job = holders(addresses={host: f"tcp:127.0.0.1:{port}" for host, port in zip("ab", ports, strict=True)})
    strangers = [socket.create_connection(("127.0.0.1", ports[1])) for _ in range(40)]
    try:
        for number, stranger in enumerate(strangers):
            with suppress(OSError):
                # A length that nobody may announce, a greeting without the key, and silence.
                hello = json.dumps({"host": "a", "answer": "x", "proof": "0" * 64}).encode()
                greeting = len(hello).to_bytes(4, "big") + hello
                stranger.sendall([b"\xff\xff\xff\xff", greeting, b""][number % 3])
        started = time.monotonic()
        job.save("a", SAVE)
        wait_until(lambda: job.room("a")["copied"], seconds=30)
        # Silent ones are cut after five seconds.
        assert time.monotonic() - started < 20
        status = Path(f"/proc/{job.processes['b'].pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 100_000
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_holder_with_another_key_gets_nothing(holders, tmp_path):
    job = holders()
    job.save("a", SAVE)
    job.kill("b")
    job.start("b", key="other")
    with pytest.raises(link.AbsentError):
        job.get("b", SAVE, "rank-a")


def test_a_holder_ends_by_itself_when_nobody_speaks_to_it(holders):
    job = holders(["a"], idle=0.2)
    assert job.processes["a"].wait(10) == 0
