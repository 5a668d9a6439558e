"""The controller takes requests from the job's folder alone, and forwards each to the hosts that it is for."""

import json
import os
import socket

import pytest

from herringbone.controller.hosts import Host
from herringbone.controller.requests import forward, take
from herringbone.events.source import decode_lines
from herringbone_contract.events.requests import MAX_REQUEST_BYTES, encode

REQUEST = {"id": "00ff00ff00ff00ff", "kind": "stacks"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    path = tmp_path / "requests"
    path.mkdir()
    return path


def put(folder, name="a.json", **members):
    (folder / name).write_bytes(encode({**REQUEST, **members}))


def make_host(name):
    read, write = os.pipe()
    os.set_blocking(write, False)
    host = Host({"name": name, "base": "/nowhere"}, log=None)
    host.line = write
    return host, read


def test_requests_are_taken_once_and_in_their_order(folder):
    put(folder, "b.json", number=1)
    os.utime(folder / "b.json", (1, 1))
    put(folder, "a.json", number=2)
    assert [request["number"] for request in take(str(folder))] == [1, 2]
    assert take(str(folder)) == []


def test_what_is_no_request_file_is_not_read(folder, tmp_path, capfd):
    # A FIFO would block the controller, a link would lead out, and an unfinished file is not renamed yet.
    os.mkfifo(folder / "fifo.json")
    put(tmp_path, "outside.json")
    (folder / "link.json").symlink_to(tmp_path / "outside.json")
    (folder / "folder.json").mkdir()
    (folder / "long.json").write_bytes(b"x" * (MAX_REQUEST_BYTES + 1))
    put(folder, "b.partial")
    assert take(str(folder)) == []
    assert sorted(os.listdir(folder)) == ["b.partial", "folder.json"]
    assert (tmp_path / "outside.json").exists()


def test_a_folder_that_is_gone_is_no_reason_to_fail(tmp_path, capfd):
    assert take(str(tmp_path / "requests")) == []


def test_a_request_goes_to_the_hosts_that_it_names(folder):
    (first, first_end), (second, second_end) = make_host("algo-1"), make_host("algo-2")
    put(folder, hosts=["algo-2"])
    forward(str(folder), [first, second])
    os.set_blocking(first_end, False)
    assert json.loads(os.read(second_end, 10_000)) == {**REQUEST, "hosts": ["algo-2"]}
    with pytest.raises(BlockingIOError):
        os.read(first_end, 1)


def test_hosts_that_take_no_request_are_answered_for(folder):
    over, _ = make_host("algo-1")
    over.exit_code = 0
    foreign, _ = make_host("algo-2")
    foreign.line = None
    stopped, _ = make_host("algo-3")
    while stopped.tell(b"x" * 4096):
        pass
    put(folder)
    forward(str(folder), [over, foreign, stopped])
    logs = folder.parent / "logs"
    answers = {event["host"]: event for path in logs.iterdir() for event in decode_lines(path.read_bytes())}
    assert {event["id"] for event in answers.values()} == {REQUEST["id"]}
    assert answers["algo-1"]["error"] == "this host is over"
    assert "takes no requests" in answers["algo-2"]["error"]
    assert "takes no requests" in answers["algo-3"]["error"]


def test_a_request_that_a_socket_cuts_is_completed_before_the_next():
    host, _ = make_host("algo-1")
    ours, end = socket.socketpair()
    ours.setblocking(False)
    end.settimeout(20)
    host.line = ours.fileno()
    # The kernel takes as much of a line as there is room for.
    first, second = b"1" * (1 << 19) + b"\n", b"second line\n"
    assert host.tell(first)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    cut = end.recv(len(first))
    assert cut < first
    assert host.tell(second)
    while len(cut) < len(first + second):
        cut += end.recv(len(first))
    assert cut == first + second
    ours.close()
    end.close()


def test_a_request_that_a_host_could_not_take_is_not_sent_later():
    host, _ = make_host("algo-1")
    ours, end = socket.socketpair()
    ours.setblocking(False)
    end.settimeout(20)
    host.line = ours.fileno()
    first, second = b"1" * (1 << 22) + b"\n", b"second line\n"
    assert host.tell(first)
    got = end.recv(1 << 18)
    # There is room again, and less than the first request still needs.
    assert not host.tell(second)
    while len(got) < len(first):
        host.tell(b"")
        got += end.recv(1 << 18)
    assert host.tell(second)
    assert got + end.recv(1 << 18) == first + second
    ours.close()
    end.close()
