"""The files of the line: what counts, what others may write there, and what a killed process leaves."""

import errno
import gc
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from herringbone.slots.folder import SlotsFolder, cpu_shares, slots_path, user_name
from herringbone.slots.ticket import Ticket, Wants, decode, encode, uid_of
from herringbone_contract.errors import LaunchError, OptionError

UID = os.getuid()


def ticket(job="a", number=1, **fields):
    values = {"arrival": 1.0, "wants": Wants(gpus=1), **fields}
    return Ticket(name=f"{UID}.{job}.{number:012x}", job=job, user=user_name(UID), **values)


@pytest.fixture
def folder(tmp_path):
    return SlotsFolder(str(tmp_path / "slots"), lock_seconds=0.2)


def add(folder, one):
    with folder.locked():
        return folder.add(one)


def names(folder):
    return sorted(os.listdir(folder.path))


def test_a_ticket_counts_until_its_last_descriptor_is_closed(folder):
    descriptor = add(folder, ticket())
    copy = os.dup(descriptor)
    os.close(descriptor)
    assert folder.read().tickets == (ticket(),)
    os.close(copy)
    assert folder.read().tickets == ()


def test_a_ticket_is_of_the_owner_of_its_file_whatever_it_says(folder):
    descriptor = add(folder, msgspec.structs.replace(ticket(), user="somebody-else"))
    assert [ticket.user for ticket in folder.read().tickets] == [user_name(UID)]
    os.close(descriptor)


def test_a_killed_process_loses_its_ticket_and_one_that_inherited_it_keeps_it(folder):
    descriptor = add(folder, ticket())
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[descriptor])
    os.close(descriptor)
    assert len(folder.read().tickets) == 1
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert folder.read().tickets == ()


def test_the_next_to_enter_removes_what_dead_jobs_left(folder):
    os.close(add(folder, ticket("dead")))
    Path(f"{folder.path}/{UID}.cut.{2:012x}.partial").touch()
    descriptor = add(folder, ticket("b"))
    assert [name for name in names(folder) if "dead" in name or "cut" in name] == []
    os.close(descriptor)


def test_a_ticket_that_left_is_gone_for_all(folder):
    descriptor = add(folder, ticket())
    folder.remove(ticket().name)
    assert folder.read().tickets == ()
    assert names(folder) == ["lock"]
    os.close(descriptor)


def test_everybody_can_read_a_ticket_whatever_the_umask_is(tmp_path):
    before = os.umask(0o077)
    try:
        folder = SlotsFolder(str(tmp_path / "slots"))
        descriptor = add(folder, ticket())
    finally:
        os.umask(before)
    mode = {name: stat.S_IMODE(os.lstat(f"{folder.path}/{name}").st_mode) for name in names(folder)}
    assert mode == {"lock": 0o644, ticket().name: 0o644, f"{ticket().name}.alive": 0o622}
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o1777
    os.close(descriptor)


def hostile_files(folder):
    """Write what another user could write, under names that pass for tickets."""
    own = f"{folder.path}/{UID}"

    def living(number):
        os.mkfifo(f"{own}.x.{number:012x}.alive")
        return os.open(f"{own}.x.{number:012x}.alive", os.O_RDWR)

    descriptors = [living(number) for number in range(10, 17)]
    good = encode(ticket("x", 10))
    Path(f"{own}.x.{10:012x}").write_bytes(b"{" + good)
    Path(f"{own}.x.{11:012x}").write_bytes(good + b" " * 100_000)
    os.symlink(f"{own}.x.{11:012x}", f"{own}.x.{12:012x}")
    os.mkfifo(f"{own}.x.{13:012x}")
    os.mkdir(f"{own}.x.{14:012x}")
    Path(f"{own}.x.{15:012x}").write_bytes(b"[" * 60_000)
    # The name of another user, whose files these are not.
    Path(f"{folder.path}/{UID + 1}.x.{16:012x}").write_bytes(good)
    os.mkfifo(f"{folder.path}/{UID + 1}.x.{16:012x}.alive")
    descriptors.append(os.open(f"{folder.path}/{UID + 1}.x.{16:012x}.alive", os.O_RDWR))
    # A regular file and a link in the place of a FIFO.
    Path(f"{own}.x.{17:012x}").write_bytes(good)
    Path(f"{own}.x.{17:012x}.alive").touch()
    Path(f"{own}.x.{18:012x}").write_bytes(good)
    os.symlink(f"{own}.x.{10:012x}.alive", f"{own}.x.{18:012x}.alive")
    Path(f"{folder.path}/{UID + 1}.turn").touch()
    Path(f"{folder.path}/x.turn").touch()
    return descriptors


def test_a_bad_file_costs_nothing_but_itself(folder):
    descriptors = hostile_files(folder)
    assert folder.read().tickets == ()
    assert folder.read().turns == {}
    own = add(folder, ticket("mine", 99))
    assert [one.job for one in folder.read().tickets] == ["mine"]
    for descriptor in (*descriptors, own):
        os.close(descriptor)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b'"x"', b"{}",
        encode(ticket()).replace(b'"arrival":1.0', b'"arrival":"soon"'),
        encode(ticket()).replace(b'"arrival":1.0', b'"arrival":-1'),
        encode(ticket()).replace(b'"gpus":1', b'"gpus":-1'),
        encode(ticket()).replace(b'"gpus":1', b'"gpus":1e99'),
        encode(ticket()).replace(b'"priority":0', b'"priority":1000'),
        encode(msgspec.structs.replace(ticket(), user="x" * 5000)),
    ],
)  # fmt: skip
def test_a_ticket_of_another_form_is_none(content):
    assert decode(ticket().name, content) is None


def test_a_ticket_survives_its_file():
    one = ticket(granted=("g0",), granted_at=2.0, priority=3, home="/h", max_run=60.0)
    assert decode(one.name, encode(one)) == one


@pytest.mark.parametrize("name", ["lock", "1000.turn", "a.b.c", "1.a.0", "1./.000000000000", "1.a.00000000000g"])
def test_other_names_are_no_tickets(name):
    assert uid_of(name) is None


def test_a_lock_that_somebody_keeps_is_waited_for_and_named(folder):
    other = SlotsFolder(folder.path)
    with other.locked():
        begin = time.monotonic()
        with pytest.raises(LaunchError, match=r"slots/lock: another process holds the lock"), folder.locked():
            pass
        assert 0.2 <= time.monotonic() - begin < 2
    with folder.locked():
        pass


def test_a_private_folder_of_the_user_stays_private(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    folder = SlotsFolder(str(tmp_path / "mine"))
    os.close(add(folder, ticket()))
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700


def test_a_new_folder_is_shared_also_in_one_that_hands_on_its_group(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab").chmod(0o2775)
    SlotsFolder(str(tmp_path / "lab" / "slots"))
    assert stat.S_IMODE((tmp_path / "lab" / "slots").stat().st_mode) & 0o1777 == 0o1777


def test_a_lock_file_that_was_replaced_is_not_held(folder):
    with folder.locked():
        os.unlink(f"{folder.path}/lock")
        other = SlotsFolder(folder.path, lock_seconds=0.2)
        with other.locked():
            assert os.path.exists(f"{folder.path}/lock")


def test_a_link_in_the_place_of_the_folder_or_the_lock_is_refused(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder.path)
    with pytest.raises(LaunchError, match="must be a folder and no link"):
        SlotsFolder(str(tmp_path / "link"))
    os.symlink("/etc/passwd", f"{folder.path}/lock")
    with pytest.raises(LaunchError, match="remove it"), folder.locked():
        pass


def test_the_turn_is_the_time_of_the_last_grant(folder):
    before = time.time() - 1
    folder.take_turn()
    assert before < folder.read().turns[UID] <= time.time()
    os.utime(f"{folder.path}/{UID}.turn", (9e9, 9e9))
    assert folder.read().turns[UID] <= time.time()


def test_a_poke_wakes_and_a_poke_of_nobody_is_no_error(folder):
    descriptor = add(folder, ticket())
    folder.poke([ticket().name, ticket("gone", 7).name, "notes.txt"])
    assert os.read(descriptor, 10) == b"\0"
    os.close(descriptor)
    folder.poke([ticket().name])


@pytest.mark.parametrize(
    ("content", "shares"), [('{"cpu_shares": 3}', 3), ('{"cpu_shares": "3"}', 0), ("[", 0), ('{"cpu_shares": true}', 0)]
)
def test_the_machine_says_its_cpu_shares(folder, content, shares):
    environ = {"HERRINGBONE_SLOTS": folder.path}
    assert cpu_shares(environ) == 0
    Path(f"{folder.path}/machine.json").write_text(content)
    assert cpu_shares(environ) == shares
    assert cpu_shares({**environ, "HERRINGBONE_CPU_SHARES": "8"}) == 8


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(OptionError, match="HERRINGBONE_CPU_SHARES=many"):
        cpu_shares({"HERRINGBONE_CPU_SHARES": "many"})
    with pytest.raises(OptionError, match="HERRINGBONE_SLOTS=slots: expected an absolute path"):
        slots_path({"HERRINGBONE_SLOTS": "slots"})


@pytest.mark.parametrize("suffix", [".alive", ""])
def test_a_process_that_may_open_nothing_more_takes_no_living_job_for_dead(folder, monkeypatch, suffix):
    descriptor = add(folder, ticket())
    real = os.open

    def short_of_files(path, *arguments, **options):
        if str(path) == ticket().name + suffix:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE), path)
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", short_of_files)
        with pytest.raises(OSError, match="open files"):
            folder.read()
        if suffix:
            with pytest.raises(OSError, match="open files"):
                add(folder, ticket("b", 2))
    assert folder.read().tickets == (ticket(),)
    os.close(descriptor)


def test_half_a_ticket_is_never_put_in_the_place_of_a_whole_one(folder, full_disk):
    descriptor = add(folder, ticket())
    with full_disk(20), pytest.raises(OSError, match="space"):
        folder.replace(ticket(granted=("GPU-0",), granted_at=2.0))
    assert folder.read().tickets == (ticket(),)
    os.close(descriptor)


def test_a_file_of_another_user_in_the_place_of_the_turn_costs_no_start(folder, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    Path(f"{folder.path}/{UID}.turn").touch()
    monkeypatch.setattr(os, "utime", refuse)
    folder.take_turn()


def test_a_folder_that_nobody_uses_any_more_is_closed(tmp_path):
    def descriptors():
        gc.collect()
        return len(os.listdir("/dev/fd"))

    before = descriptors()
    for _ in range(5):
        SlotsFolder(str(tmp_path / "slots"))
    assert descriptors() == before


@pytest.mark.parametrize("field", ["job", "user", "note"])
def test_a_ticket_that_would_control_a_terminal_is_none(field):
    assert decode(ticket().name, encode(msgspec.structs.replace(ticket(), **{field: "a\x1b[2J"}))) is None
    assert decode(ticket().name, encode(ticket(granted=("g0\n",)))) is None
