"""Several hosts find each other, leave together, and notice a lost host."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from pathlib import Path

import pytest

# The control channel of hosts on one machine, and of hosts on several.
OVER = pytest.mark.parametrize("over", ["unix", "tcp"])
WAYS = [("torch", "unix"), ("torch", "tcp"), ("openmpi5", "unix"), ("openmpi5", "tcp")]
SLEEP = "import os, time; open(os.environ['ROOT'] + '/up-' + os.environ['RANK'], 'w'); time.sleep(60)"
TORCH = {"sagemaker_torch_distributed_enabled": True}
MPI2 = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}


@pytest.mark.parametrize(("launcher", "over"), WAYS)
def test_p4_every_host_ends_within_a_second_of_the_last_rank(make_job, mpirun, launcher: str, over: str) -> None:
    job = make_job(hosts=2, over=over)
    if launcher != "torch":
        job.environment["HERRINGBONE_MPIRUN"] = mpirun(launcher)
    job.write("import time; print(time.time())", **(TORCH if launcher == "torch" else MPI2))
    ended = job.run()
    took = time.time() - max(float(line.split()[-1]) for result in ended.values() for line in result.rank_lines)
    assert [result.code for result in ended.values()] == [0, 0]
    assert all(result.success for result in ended.values())
    assert took < 1.5


@pytest.mark.parametrize(("launcher", "over"), [*WAYS, ("openmpi4", "tcp"), ("mpich", "unix"), ("mpich", "tcp")])
def test_p6_another_host_killed_ends_the_first(make_job, mpirun, launcher: str, over: str) -> None:
    job = make_job(hosts=2, over=over)
    if launcher != "torch":
        job.environment["HERRINGBONE_MPIRUN"] = mpirun(launcher)
    job.write(SLEEP, **(TORCH if launcher == "torch" else MPI2))
    job.start()
    job.seen("up-", 2 if launcher == "torch" else 4)
    job.processes["algo-2"].send_signal(signal.SIGKILL)
    began = time.monotonic()
    ended = job.wait()["algo-1"]
    assert time.monotonic() - began < 5.0
    assert ended.code == 1
    assert ended.failure_text.startswith("algo-2: exit code 1: lost contact with algo-2")
    # A daemon of mpirun's outlives its killed supervisor until it notices mpirun's end; in a container it cannot.
    assert job.survivors(patience=3.0 if over == "tcp" else 0.0) == []


@pytest.mark.parametrize(("launcher", "over"), WAYS)
def test_p7_the_first_host_killed_ends_the_others(make_job, mpirun, launcher: str, over: str) -> None:
    job = make_job(hosts=3, over=over)
    if launcher != "torch":
        job.environment["HERRINGBONE_MPIRUN"] = mpirun(launcher)
    job.write(SLEEP, **(TORCH if launcher == "torch" else MPI2))
    job.start()
    job.seen("up-", 3 if launcher == "torch" else 6)
    job.processes["algo-1"].send_signal(signal.SIGKILL)
    began = time.monotonic()
    ended = job.wait()
    assert time.monotonic() - began < 10.0
    for host in ("algo-2", "algo-3"):
        assert ended[host].code == 1
        assert "lost contact with algo-1" in ended[host].failure_text
        assert not ended[host].success
    # mpirun, whose supervisor was killed, ends once it notices the end of its ranks. The other hosts do not wait.
    assert job.survivors(patience=3.0) == []


@OVER
@pytest.mark.parametrize("frozen", ["algo-1", "algo-2"])
def test_p8_a_frozen_host_is_noticed(make_job, over: str, frozen: str) -> None:
    job = make_job(hosts=2, over=over, HERRINGBONE_HEARTBEAT="0.3")
    job.write(SLEEP, **TORCH)
    job.start()
    job.seen("up-", 2)
    job.processes[frozen].send_signal(signal.SIGSTOP)
    other = "algo-2" if frozen == "algo-1" else "algo-1"
    job.processes[other].wait(timeout=6.0)
    job.processes[frozen].send_signal(signal.SIGCONT)
    ended = job.wait()
    assert ended[other].code == 1
    assert f"lost contact with {frozen}" in ended[other].failure_text
    # When it continues, it has lost the others, and ends as well.
    assert ended[frozen].code == 1
    assert job.survivors() == []


@OVER
@pytest.mark.parametrize("missing", ["algo-1", "algo-2"])
def test_p9_a_host_that_never_comes_is_named(make_job, over: str, missing: str) -> None:
    job = make_job(hosts=2, over=over, HERRINGBONE_JOIN_TIMEOUT="0.6")
    job.write(SLEEP, **TORCH)
    present = "algo-2" if missing == "algo-1" else "algo-1"
    job.start(present)
    ended = job.wait(timeout=6.0)[present]
    assert ended.code == 1
    assert f"{missing} did not come within 0.6 s" in ended.failure_text


def test_a_host_that_cannot_prepare_ends_all_hosts(make_job) -> None:
    job = make_job(hosts=2)
    job.write("print('never')", **TORCH)
    (job.base("algo-2") / "code" / "train.py").unlink()
    ended = job.run(timeout=10.0)
    for result in ended.values():
        assert result.code == 1
        assert result.failure.host == "algo-2"
        assert "'train.py' is not in" in result.failure.message


def reach(control: str) -> socket.socket:
    """Connect to a control channel as soon as somebody listens."""
    kind, _, rest = control.partition(":")
    deadline = time.monotonic() + 10.0
    while True:
        try:
            if kind == "tcp":
                return socket.create_connection(rest.split(":"))
            if Path(rest).exists():
                stranger = socket.socket(socket.AF_UNIX)
                stranger.connect(rest)
                return stranger
        except ConnectionRefusedError:
            pass
        assert time.monotonic() < deadline, "nobody listens"
        time.sleep(0.02)


@OVER
def test_strangers_neither_join_nor_delay(make_job, over: str) -> None:
    # A handshake in blocking calls would wait for the first silent stranger for ever.
    job = make_job(hosts=2, over=over)
    job.write("print('through')", **TORCH)
    job.start("algo-1")
    with contextlib.ExitStack() as strangers:
        bad = [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\x07\xd0" + b"[" * 2_000, b"\0\0\0\x12" + b'{"host": "\\ud800"}']
        for number in range(70):
            stranger = strangers.enter_context(reach(job.control))
            if number % 4:
                stranger.send(bad[number % 4 - 1])
        job.start("algo-2")
        ended = job.wait(timeout=10.0)
    assert [result.code for result in ended.values()] == [0, 0]


@OVER
def test_a_host_with_another_secret_is_refused(make_job, over: str) -> None:
    job = make_job(hosts=2, over=over, HERRINGBONE_JOIN_TIMEOUT="1.5")
    job.write("print('never')", **TORCH)
    job.start("algo-1")
    job.name, right = "another job", job.name
    job.start("algo-2")
    job.name = right
    ended = job.wait(timeout=10.0)
    assert "algo-1 was reached " in ended["algo-2"].failure_text
    assert "does this host have the secret" in ended["algo-2"].failure_text
    assert "algo-2 did not come" in ended["algo-1"].failure_text


def test_without_a_channel_the_message_names_the_variables_to_set(make_job) -> None:
    job = make_job(hosts=2, over="tcp")
    job.write("print('together')", **TORCH)
    job.control = ""
    ended = job.run()
    assert [result.code for result in ended.values()] == [1, 1]
    assert "Set HERRINGBONE_CONTROL=tcp::7590" in ended["algo-2"].failure.message


def test_the_secret_may_be_a_file_of_an_input_channel(make_job) -> None:
    job = make_job(hosts=2, over="tcp")
    job.write("print('together')", **TORCH)
    key = job.root / "key"
    key.write_text("something that only this job's hosts can read")
    ended = job.run(HERRINGBONE_KEY_FILE=str(key))
    assert [result.code for result in ended.values()] == [0, 0]


def test_a_port_that_is_taken_is_named(make_job) -> None:
    job = make_job(hosts=2, over="tcp")
    job.write("print('never')", **TORCH)
    port = job.control.rpartition(":")[2]
    with socket.create_server(("", int(port))):
        job.start("algo-1")
        ended = job.wait(timeout=10.0)["algo-1"]
    assert ended.code == 1
    assert f"control channel: cannot listen at port {port} of this host: " in ended.failure_text


def test_nobody_can_connect_once_all_hosts_have_joined(make_job) -> None:
    job = make_job(hosts=2, over="tcp")
    job.write(SLEEP, **TORCH)
    job.start()
    job.seen("up-", 2)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(job.control.split(":")[1:])
