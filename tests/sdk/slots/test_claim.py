"""Claims on a machine: granted, refused, handed on, freed, and what a kill between any two lines leaves."""

import errno
import os
import select
import signal
import sys
import tempfile
import threading

import pytest

from herringbone.backends.waiter import Waiter
from herringbone.slots.claim import Claim, Line, open_line
from herringbone.slots.folder import SlotsFolder
from herringbone.slots.line import Granted, Waiting, line_text
from herringbone.slots.places import PlaceLines, place_texts, queue_members
from herringbone.slots.release import free, touch
from herringbone.slots.ticket import Wants, encode
from herringbone_contract.errors import LaunchError

LISTING = "GPU 0: A (UUID: GPU-0)\nGPU 1: A (UUID: GPU-1)\n  MIG 1g Device 0: (UUID: MIG-a)\n"


class Gpus:
    """A probe of two GPUs, one of them cut; `use` is what others do there."""

    def __init__(self, use=""):
        self.use = use

    def listing(self):
        return LISTING

    def processes(self):
        return self.use


@pytest.fixture
def line(tmp_path):
    return Line(SlotsFolder(str(tmp_path / "slots")), Gpus(), {})


def enter(line, job="a", **wants):
    return line.enter(job, home="/home/ann", wants=Wants(**(wants or {"gpus": 1})))


def test_gpus_and_slices_are_granted_until_none_is_left(line):
    claims = [enter(line, job) for job in "abc"]
    assert [claim.advance() for claim in claims[:2]] == [Granted(("GPU-0",)), Granted(("MIG-a",))]
    waiting = claims[2].advance()
    assert line_text(waiting) == "1st in line, waits for a (root), b (root)".replace("root", claims[0].ticket.user)
    claims[0].leave()
    assert claims[2].advance() == Granted(("GPU-0",))
    for claim in claims:
        claim.close()


def test_the_end_of_a_job_wakes_the_first_of_the_line(line):
    first, second = enter(line, gpus=2), enter(line, "b")
    first.advance()
    second.advance()
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(os.read(second.descriptor, 1)))
    os.set_blocking(second.descriptor, True)
    waiter.start()
    free(first.config)
    waiter.join(10)
    assert woken == [b"\0"]
    assert second.advance() == Granted(("GPU-0",))
    first.close()
    second.close()


def test_a_grant_of_a_job_that_does_not_start_costs_the_user_no_turn(line):
    uid = os.getuid()
    first, second = enter(line), enter(line, "b")
    first.advance()
    first.give_back()
    assert line.folder.read().turns[uid] == 0.0
    first.advance()
    noted = line.folder.read().turns[uid]
    first.leave()
    assert line.folder.read().turns[uid] == 0.0 < noted
    # The turn of a later grant is that job's own.
    third = enter(line, "c")
    third.advance()
    second.advance()
    noted = line.folder.read().turns[uid]
    third.leave()
    assert line.folder.read().turns[uid] == noted
    for claim in (first, second, third):
        claim.close()


def test_a_gpu_that_another_program_uses_is_waited_for_and_named(line):
    line._probe.use = "GPU-0, 4711, 9000\nMIG-a, 12, 5000\n"
    claim = enter(line)
    waiting = claim.advance()
    assert isinstance(waiting, Waiting)
    assert waiting.foreign == (("GPU-0", "process 4711"), ("MIG-a", "process 12"))
    # `ls` learns it from the ticket, and asks no driver.
    (ticket,) = line.folder.read().tickets
    assert ticket.note.startswith("process 4711 on GPU-0, outside Herringbone")
    line._probe.use = ""
    assert claim.advance() == Granted(("GPU-0",))
    claim.close()


def test_what_a_notebook_has_on_a_gpu_does_not_refuse_its_own_job(tmp_path):
    line = Line(SlotsFolder(str(tmp_path / "slots")), Gpus("GPU-0, 4711, 9000\n"), {})
    mine = [line.enter(job, home="/home/ann", wants=Wants(gpus=1), client=4711) for job in "ab"]
    # The other GPU first.
    assert [claim.advance() for claim in mine] == [Granted(("MIG-a",)), Granted(("GPU-0",))]
    for claim in mine:
        claim.leave()
    assert line_text(enter(line, gpus=2).advance(), "process 4711") == "1st in line, waits for process 4711"


def test_a_job_without_gpus_asks_no_driver(line):
    line._environ = {"HERRINGBONE_CPU_SHARES": "2"}
    line._probe.processes = lambda: pytest.fail("the driver was asked")
    claims = [enter(line, job, shares=1) for job in "abc"]
    decisions = [claim.advance() for claim in claims]
    assert decisions[:2] == [Granted(("cpu-share-1",)), Granted(("cpu-share-2",))]
    assert isinstance(decisions[2], Waiting)
    for claim in claims:
        claim.close()


def test_a_waiter_keeps_its_place_while_somebody_keeps_the_lock(line):
    claim = enter(line)
    config = {"claim": claim.config, "ticket": encode(claim.ticket).decode(), "deadline": None, "job": "a"}
    waiter = Waiter(config)
    impatient = Line(SlotsFolder(line.folder.path, lock_seconds=0.05), Gpus(), {})
    waiter._claim = Claim(impatient, claim.ticket, claim.descriptor)
    with line.folder.locked():
        assert waiter._advance() == Waiting(1)
    assert waiter._advance() == Granted(("GPU-0",))
    claim.close()


def waiter_of(claim, **config):
    """Return the waiter of a claim, in this process."""
    text = encode(claim.ticket).decode()
    return Waiter({"claim": claim.config, "ticket": text, "deadline": None, "job": "a", **config})


def test_a_full_disk_costs_no_place(line, full_disk, capsys):
    claim = enter(line)
    waiter = waiter_of(claim)
    waiter._claim = claim
    with full_disk(20):
        assert [waiter._advance(), waiter._advance()] == [Waiting(1), Waiting(1)]
    # Said once: the log of a job that waits for days must not grow.
    assert capsys.readouterr().err.count("No space left") == 1
    assert waiter._advance() == Granted(("GPU-0",))
    claim.close()


class Unpoked(SlotsFolder):
    """A folder in which nobody can be woken."""

    def poke(self, names):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def test_an_error_after_the_grant_does_not_undo_it(tmp_path):
    claim = enter(Line(Unpoked(str(tmp_path / "slots")), Gpus(), {}))
    assert claim.advance() == Granted(("GPU-0",))
    claim.close()


def test_a_waiter_keeps_its_ticket_young(line):
    first, claim = enter(line, gpus=2), enter(line, gpus=2)
    first.advance()
    path = f"{line.folder.path}/{claim.ticket.name}"
    os.utime(path, (1, 1))
    assert waiter_of(claim, deadline=1.0, backend="local_process")._wait(0) == "MaxWaitTimeExceeded"
    assert os.stat(path).st_mtime > 1
    first.close()
    claim.close()


class Leftovers:
    """A backend on whose devices a killed controller left hosts, until the third look."""

    def __init__(self):
        self.looks = []

    def are_free(self, devices):
        self.looks.append(devices)
        return len(self.looks) == 3


def test_a_job_waits_for_hosts_that_outlive_a_killed_controller(line):
    claim = enter(line)
    waiter = waiter_of(claim)
    waiter._claim, waiter._backend = claim, Leftovers()
    assert waiter._wait(0) is None
    assert waiter._backend.looks == [("GPU-0",)] * 3
    claim.close()


def test_the_end_of_a_job_wakes_one_far_back_that_waits_for_other_gpus(line):
    holder = enter(line, gpus=2)
    holder.advance()
    first = [enter(line, f"b{number}", gpus=1, among=("GPU-0",)) for number in range(6)]
    back = enter(line, "back", gpus=1, among=("MIG-a",))
    free(holder.config)
    woken = [bool(select.select([claim.descriptor], [], [], 0)[0]) for claim in (*first, back)]
    assert woken == [True] * 4 + [False] * 2 + [True]
    assert back.advance() == Granted(("MIG-a",))
    for claim in (holder, *first, back):
        claim.close()


def test_a_ticket_that_somebody_removed_is_an_error(line):
    claim = enter(line)
    os.unlink(f"{line.folder.path}/{claim.ticket.name}")
    with pytest.raises(LaunchError, match="somebody has removed its files"):
        claim.advance()
    claim.close()


def test_slots_may_be_switched_off():
    assert open_line({"HERRINGBONE_SLOTS": "off"}, Gpus()) is None


def test_a_ticket_stays_young(line):
    claim = enter(line)
    path = f"{line.folder.path}/{claim.ticket.name}"
    os.utime(path, (1, 1))
    touch(claim.config)
    assert os.stat(path).st_mtime > 1e9
    free(None)
    touch(None)
    claim.close()


def test_threads_of_several_processes_never_get_the_same_gpu(line):
    """Each enters, is granted, notes its GPU, and leaves."""
    holders, errors = [], []
    path = line.folder.path

    def take(number):
        mine = Line(SlotsFolder(path), Gpus(), {})
        for at in range(5):
            claim = enter(mine, f"j{number}-{at}")
            while not isinstance(decision := claim.advance(), Granted):
                os.sched_yield()
            (gpu,) = decision.devices
            if gpu in holders:
                errors.append(gpu)
            holders.append(gpu)
            os.sched_yield()
            holders.remove(gpu)
            claim.leave()
            claim.close()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert os.listdir(path) != []
    assert line.folder.read().tickets == ()


@pytest.fixture
def shared_folder():
    """A folder that every user can enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - of another user, who must get in
        yield folder


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_two_users_share_a_line(shared_folder):
    """Nobody but the owner can change a ticket, or keep it alive."""
    path = f"{shared_folder}/slots"
    mine = Line(SlotsFolder(path), Gpus(), {})
    claim = enter(mine, gpus=2)
    assert claim.advance() == Granted(("GPU-0", "MIG-a"))
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(claim.descriptor)
            os.setgid(65534)
            os.setuid(65534)
            line = Line(SlotsFolder(path), Gpus(), {})
            other = enter(line, "other")
            waiting = other.advance()
            assert isinstance(waiting, Waiting)
            assert [ticket.job for ticket in waiting.holders] == ["a"]
            # Neither removes anything of the other user, nor reads the FIFO, which would keep a dead job alive.
            line.folder.remove(claim.ticket.name)
            assert len(line.folder.read().tickets) == 2
            with pytest.raises(PermissionError):
                os.open(f"{path}/{claim.ticket.name}.alive", os.O_RDONLY | os.O_NONBLOCK)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [ticket.job for ticket in mine.folder.read().tickets] == ["a"]
    claim.close()


def one_life(path):
    """Enter, be granted, and leave: what a job does."""
    line = Line(SlotsFolder(path), Gpus(), {})
    claim = enter(line, "victim", gpus=2)
    claim.advance()
    claim.leave()


def lines_of_a_life(path):
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "/slots/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        one_life(path)
    finally:
        sys.settrace(None)
    return count


def die_at(path, last):
    """Run a life in a process that is killed before its line number `last`."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "/slots/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    try:
        sys.settrace(trace)
        one_life(path)
    finally:
        os._exit(0)


def test_a_kill_between_any_two_lines_loses_no_gpu_and_gives_none_twice(tmp_path):
    path = str(tmp_path / "slots")
    total = lines_of_a_life(path)
    assert total > 150
    next_one = Line(SlotsFolder(path), Gpus(), {})
    # Every line: step 1 takes three seconds of a core. CI takes every fifth.
    for last in range(1, total, 5):
        assert die_at(path, last) == -signal.SIGKILL
        claim = enter(next_one, gpus=2)
        assert claim.advance() == Granted(("GPU-0", "MIG-a")), last
        claim.leave()
        claim.close()
        assert [name for name in os.listdir(path) if "victim" in name] == [], last


def test_the_views_show_the_place(line, monkeypatch, tmp_path):
    from herringbone.records.home import Home
    from herringbone.records.index import JobRecord

    monkeypatch.setenv("HERRINGBONE_SLOTS", line.folder.path)
    holder, waiter = enter(line, gpus=2), enter(line, "b")
    holder.advance()
    home = Home(tmp_path / "home")
    waiting = JobRecord(name="b", backend="local_process", plan="{}", created=0.0, secondary_status="Pending")
    assert place_texts(home, [waiting]) == {}, "a job of another home"
    claim = line.enter("b", home=str(home.path), wants=Wants(gpus=1))
    user = claim.ticket.user
    assert place_texts(home, [waiting]) == {"b": f"2nd in line, waits for a ({user})"}
    members = queue_members(home, waiting)
    assert (members["Place"], members["Text"]) == (2, f"2nd in line, waits for a ({user})")
    (shown,) = members["WaitsFor"]
    assert shown.pop("LatestEnd").startswith("20")
    assert shown == {"Job": "a", "User": user}
    lines = PlaceLines(home)
    assert lines.of(waiting, now=0.0) == [f"b: 2nd in line, waits for a ({user})"]
    assert lines.of(waiting, now=10.0) == []
    waiter.leave()
    assert lines.of(waiting, now=10.2) == [], "a look costs time"
    assert lines.of(waiting, now=90.0) == [f"b: 1st in line, waits for a ({user})"]
    for one in (holder, waiter, claim):
        one.close()
