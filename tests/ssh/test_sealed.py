"""Tests of the connections between keepers: strangers, other machines' places, changed and repeated frames."""

import contextlib
import json
import os
import socket
import threading

import pytest

from herringbone.backends.ssh.keepers.sealed import accept, connect
from herringbone.backends.ssh.keepers.trees import receive_tree, send_tree
from herringbone_contract.channel.session import SealError
from herringbone_contract.errors import ArchiveError

KEY = b"key of the job"


@contextlib.contextmanager
def keeper(name="b", key=KEY):
    """Accept one connection as the keeper of a machine; yield its address and what comes of it."""
    outcome = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            try:
                outcome["peer"], outcome["sealed"] = accept(connection, key, me=name, patience=5.0)
            except (OSError, EOFError, SealError, ValueError) as error:
                outcome["error"] = error
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[:2], outcome, thread
        thread.join()
        if "sealed" in outcome:
            outcome["sealed"].close()


def pair():
    stack = contextlib.ExitStack()
    address, outcome, thread = stack.enter_context(keeper())
    ours = connect(address, KEY, me="a", peer="b", patience=5.0)
    stack.callback(ours.close)
    thread.join()
    return stack, ours, outcome


def test_both_ends_know_each_other_and_carry_messages_in_order():
    stack, ours, outcome = pair()
    with stack:
        assert outcome["peer"] == "a"
        for number in range(3):
            ours.send_message({"number": number})
        assert [outcome["sealed"].receive_message()["number"] for _ in range(3)] == [0, 1, 2]
        outcome["sealed"].send(b"x" * 3_000_000)
        assert len(ours.receive()) == 3_000_000


@pytest.mark.parametrize(("key", "peer"), [(b"another key", "b"), (KEY, "c")])
def test_a_stranger_and_one_who_looks_for_another_machine_learn_nothing(key, peer):
    with keeper() as (address, outcome, thread):
        with pytest.raises((EOFError, OSError, SealError)):
            connect(address, key, me="a", peer=peer, patience=5.0)
        thread.join()
        assert isinstance(outcome["error"], SealError)


def test_somebody_who_listens_in_a_keepers_place_is_refused():
    with keeper(key=b"another key") as (address, _, _), pytest.raises((EOFError, OSError, SealError)):
        connect(address, KEY, me="a", peer="b", patience=5.0)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"[]",
        b"not JSON",
        json.dumps({"from": "a", "to": "b", "challenge": "0" * 63, "proof": ""}).encode(),
        json.dumps({"from": "a", "to": "b", "challenge": ["0"], "proof": 7}).encode(),
        b"[" * 4_000,
        b"x" * 5_000,
        os.urandom(300),
    ],
)
def test_whatever_a_stranger_sends_ends_the_strangers_connection_alone(frame):
    with keeper() as (address, outcome, thread), socket.create_connection(address) as stranger:
        stranger.sendall(len(frame).to_bytes(4, "big") + frame)
        # The keeper may have closed it already.
        with contextlib.suppress(OSError):
            stranger.shutdown(socket.SHUT_WR)
        thread.join()
        assert "peer" not in outcome


def test_a_repeated_frame_and_one_of_another_connection_are_refused():
    for attack in ("repeat", "replay", "change"):
        stack, ours, outcome = pair()
        with stack:
            wire = ours._keys.seal(b"stop")
            other_stack, others, _ = pair()
            with other_stack:
                foreign = others._keys.seal(b"stop")
            sent = {"repeat": [wire, wire], "replay": [foreign], "change": [wire[:-1] + b"!"]}[attack]
            for frame in sent:
                ours._connection.sendall(len(frame).to_bytes(4, "big") + frame)
            for _ in sent[1:]:
                assert outcome["sealed"].receive() == b"stop"
            with pytest.raises(SealError):
                outcome["sealed"].receive()


def test_a_tree_arrives_whole_with_its_times_and_without_what_leads_outside(tmp_path):
    base = tmp_path / "job"
    folder = base / "checkpoints"
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-1" / "big.pt").write_bytes(os.urandom(2_500_000))
    (folder / "empty").write_bytes(b"")
    (folder / "last").symlink_to("step-1")
    (folder / "absolute").symlink_to(folder / "empty")
    (folder / "outside").symlink_to("/etc")
    os.mkfifo(folder / "fifo")
    os.utime(folder / "empty", ns=(10**18 + 7, 10**18 + 7))
    target, refused = tmp_path / "arrived", []
    target.mkdir()
    (target / "old").write_text("of an earlier fetch")
    stack, ours, outcome = pair()
    with stack:
        sender = threading.Thread(target=send_tree, args=(base, "checkpoints", ours))
        sender.start()
        receive_tree(
            outcome["sealed"],
            target,
            root=str(folder),
            shown="checkpoints",
            refused=lambda name, reason: refused.append(name),
        )
        sender.join()
    assert sorted(path.name for path in target.iterdir()) == ["absolute", "empty", "last", "step-1"]
    assert (target / "step-1" / "big.pt").read_bytes() == (folder / "step-1" / "big.pt").read_bytes()
    assert (os.readlink(target / "last"), os.readlink(target / "absolute")) == ("step-1", "empty")
    assert (target / "empty").stat().st_mtime_ns == 10**18 + 7
    assert refused == ["outside"]


def test_half_a_tree_replaces_nothing(tmp_path):
    target = tmp_path / "arrived"
    target.mkdir()
    (target / "old").write_text("whole")
    stack, ours, outcome = pair()
    with stack:
        ours.send(b"x" * 700)
        ours.close()
        with pytest.raises(ArchiveError):
            receive_tree(outcome["sealed"], target, root="/", shown="checkpoints")
    assert (target / "old").read_text() == "whole"
