"""Checkpoints and results on their way between machines: every link is kept, or named, and none is followed."""

import os
import stat

import pytest

from herringbone.backends.ssh.finish.retry import merge_checkpoints
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.transport import openssh
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport
from herringbone.controller.artifacts import HostFolder, pack
from herringbone.records.checkpoints import settle_links
from herringbone_contract.errors import HostError

# An ssh that logs in to nobody: it runs the command that rsync wants to run there.
LOCAL_SSH = '#!/bin/sh\nwhile [ "${1#sh -c}" = "$1" ]; do shift; done\nsh -c "$*"\n'


@pytest.fixture
def transport(tmp_path):
    program = tmp_path / "ssh"
    program.write_text(LOCAL_SSH)
    program.chmod(0o755)
    return OpenSSHTransport(ssh=(str(program),))


@pytest.fixture
def results(tmp_path):
    """A model folder of a machine, with one entry of each kind."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret").write_text("of this machine")
    model = tmp_path / "machine" / "model"
    (model / "epochs").mkdir(parents=True)
    (model / "epochs" / "5.pt").write_text("weights")
    (model / "best").symlink_to(model / "epochs" / "5.pt")
    (model / "last").symlink_to("epochs/5.pt")
    (model / "secret").symlink_to(tmp_path / "private" / "secret")
    (model / "up").symlink_to("../../private/secret")
    # rsync's own folder for files that are not complete yet.
    (model / ".~tmp~").symlink_to(tmp_path / "private")
    os.mkfifo(model / "fifo")
    os.mknod(model / "socket", stat.S_IFSOCK | 0o600)
    return model


def test_every_entry_of_the_results_is_packed_or_named(tmp_path, transport, results):
    """rsync dropped links that leave the folder, absolute links inside it, FIFOs and sockets without a word."""
    machine, base, messages = Machine(name="h-1"), tmp_path / "here", []
    # Twice: the second copy meets the links of the first.
    for _ in range(2):
        transport.fetch(machine, str(results), base / "model", every_kind=True)
    folder = HostFolder("algo-1", base, "model", elsewhere=str(results.parent))
    packed = pack([folder], tmp_path / "out" / "model", compress=False, say=messages.append)
    assert {path.name: os.readlink(path) for path in packed.rglob("*") if path.is_symlink()} == {
        "best": "epochs/5.pt",
        "last": "epochs/5.pt",
    }
    assert sorted(message.split(" ")[0] for message in messages) == [".~tmp~", "fifo", "secret", "socket", "up"]
    assert [path.name for path in (tmp_path / "private").iterdir()] == ["secret"]
    assert (packed / "epochs" / "5.pt").read_text() == "weights"


def test_a_copy_ends_although_a_program_of_a_login_file_holds_the_connection(tmp_path, transport, results, monkeypatch):
    """The job was in progress for ever: ssh waits for everything that has its machine's standard output."""
    monkeypatch.setattr(openssh, "_HELD_SECONDS", 0.3)
    with (tmp_path / "ssh").open("a") as program:
        program.write("code=$?\n[ $code != 0 ] || exec sleep 60\nexit $code\n")
    transport.fetch(Machine(name="h-1"), str(results), tmp_path / "logs")
    assert (tmp_path / "logs" / "epochs" / "5.pt").read_text() == "weights"
    with pytest.raises(HostError, match="No such file or directory"):
        transport.fetch(Machine(name="h-1"), str(results / "no"), tmp_path / "logs")


def test_logs_bring_no_link_that_leaves_their_folder(tmp_path, transport, results):
    transport.fetch(Machine(name="h-1"), str(results), tmp_path / "logs")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["epochs", "last"]


def test_links_of_checkpoints_stay_inside_or_are_named(tmp_path, results):
    refused = []
    settle_links(results, [str(results)], lambda name, reason: refused.append(name))
    assert sorted(refused) == [".~tmp~", "fifo", "secret", "socket", "up"]
    assert {path.name: os.readlink(path) for path in results.iterdir() if path.is_symlink()} == {
        "best": "epochs/5.pt",
        "last": "epochs/5.pt",
    }
    assert sorted(path.name for path in results.iterdir()) == ["best", "epochs", "last"]


def test_one_hosts_link_moves_no_link_of_another_host(tmp_path):
    """A link two folders deep, moved one folder up by the link of another host, led out of the merged folder."""
    one, two = tmp_path / "algo-1", tmp_path / "algo-2"
    (one / "p" / "deep").mkdir(parents=True)
    (one / "q").write_text("q")
    (one / "p" / "deep" / "x").symlink_to("../../q")
    (two / "z").mkdir(parents=True)
    (two / "z" / "w").write_text("w")
    (two / "p").mkdir()
    (two / "p" / "deep").symlink_to("../z")
    merged = merge_checkpoints(tmp_path)
    assert all(path.resolve().is_relative_to(merged) for path in merged.rglob("*"))


def test_of_checkpoints_with_one_name_the_newest_is_taken(tmp_path):
    saved = {"algo-1/state": 5, "algo-2/state": 1, "algo-2/tag/part_1": 3, ".algo-3/not-fetched-whole": 0}
    for name, age in saved.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        os.utime(file, (1_000 - age, 1_000 - age))
    folder = merge_checkpoints(tmp_path)
    contents = {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert contents == {"state": "algo-2/state", "tag/part_1": "algo-2/tag/part_1"}
    assert merge_checkpoints(tmp_path / "nowhere") is None
