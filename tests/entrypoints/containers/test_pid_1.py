"""The supervisor as PID 1 of a container: signals, orphans, a read-only system, a user without a name."""

from __future__ import annotations

import time

import pytest
from tests.pairwise import pairwise

pytestmark = pytest.mark.docker

BY_NAME = {"torch": {"sagemaker_torch_distributed_enabled": True}, "mpi": {"sagemaker_mpi_enabled": True}}
LAUNCHERS = pytest.mark.parametrize("launcher", BY_NAME.values(), ids=BY_NAME)
HANDLER = """
    import os, signal, sys, time
    def save(*_):
        open(f"{os.environ['ROOT']}/saved-{os.environ['RANK']}", "w").write(str(time.time()))
        sys.exit(int(os.environ["EXIT"]))
    signal.signal(signal.SIGTERM, save)
    open(f"{os.environ['ROOT']}/up-{os.environ['RANK']}", "w")
    time.sleep(120)
"""


@pytest.mark.parametrize(("launcher", "code", "stopped_host"), pairwise(BY_NAME, (0, 7), ("algo-1", "algo-2")))
def test_p10_a_stop_reaches_every_rank(make_job, launcher: str, code: int, stopped_host: str) -> None:
    job = make_job(hosts=2, EXIT=str(code))
    job.write(HANDLER, **BY_NAME[launcher])
    job.start()
    job.seen("up-", 2)
    began = time.time()
    job.engine.kill(job.containers[stopped_host], signal="SIGTERM")
    ended = job.wait(timeout=20.0)
    assert [result.code for result in ended.values()] == [143 if code else 0] * 2
    saved = [float((job.root / f"saved-{rank}").read_text()) for rank in range(2)]
    assert max(saved) - began < 1.5


def test_p10_a_stop_while_the_private_line_is_awaited(make_job) -> None:
    # PID 1 ignores a signal that it does not handle.
    job = make_job()
    job.write(HANDLER)
    job.start(private=False)
    time.sleep(0.5)
    job.engine.stop(job.containers["algo-1"], timeout=10)
    began = time.monotonic()
    assert job.wait(timeout=10.0)["algo-1"].code == 143
    assert time.monotonic() - began < 5.0


@LAUNCHERS
def test_p11_orphans_are_reaped_while_the_job_runs(make_job, launcher) -> None:
    job = make_job()
    job.write(
        """
        import os, pathlib, subprocess, time
        for _ in range(20):
            subprocess.run(["sh", "-c", "sleep 0.05 &"])
        time.sleep(0.5)
        stats = [path.read_text().rpartition(")")[2].split() for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
        print("zombies", sum(fields[0] == "Z" for fields in stats))
        subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"])
        """,
        **launcher,
    )
    began = time.monotonic()
    ended = job.run()["algo-1"]
    assert ended.rank_lines == ["[algo-1:0] zombies 0"]
    assert ended.code == 0
    # A grandchild that holds the output open delays the end by a second or so, and not by its own minute.
    assert time.monotonic() - began < 20.0


@LAUNCHERS
def test_p24_a_read_only_system_and_a_user_without_name_or_home(make_job, launcher) -> None:
    job = make_job(hosts=2)
    job.write("import os; print(os.getuid(), os.environ['SM_CURRENT_HOST'])", **launcher)
    job.give_to(1234)
    ended = job.run(user="1234:1234", read_only=True, tmpfs={"/tmp": ""})
    for rank, host in enumerate(job.hosts):
        assert ended[host].rank_lines == [f"[{host}:{rank}] 1234 {host}"]
        assert (ended[host].code, ended[host].success) == (0, True)


def test_p18_a_container_counts_its_own_share_of_cpus(make_job) -> None:
    job = make_job()
    job.write("import os; print(os.environ['SM_NUM_CPUS'], os.environ['SM_NUM_GPUS'])")
    ended = job.run(cpu_period=100_000, cpu_quota=50_000)["algo-1"]
    assert ended.rank_lines == ["[algo-1:0] 1 0"]


def test_p27_a_model_folder_that_cannot_be_written_fails_by_name_on_every_host(make_job) -> None:
    job = make_job(hosts=2)
    job.write("print('never')", **BY_NAME["torch"])
    for host in job.hosts:
        (job.base(host) / "model").mkdir()
        (job.base(host) / "output").mkdir(mode=0o777)
        (job.base(host) / "output").chmod(0o777)
    ended = job.run(user="1234:1234")
    for result in ended.values():
        assert (result.code, result.success) == (1, False)
        assert "/opt/ml/model cannot be written by user 1234" in result.failure_text


def test_p27_a_full_disk_ends_in_failure(make_job) -> None:
    job = make_job()
    job.write("open('/opt/ml/model/weights', 'wb').write(bytes(20 << 20))")
    (job.base() / "model").mkdir()
    ended = job.run(tmpfs={"/opt/ml/model": "size=10m"})["algo-1"]
    assert (ended.code, ended.success) == (1, False)
    assert ended.failure.message.startswith(
        "[Errno 28] No space left on device (the disk of /opt/ml/model is full: 0 MB"
    )


def test_p27_a_disk_too_full_for_the_failure_file_is_still_a_failure(make_job) -> None:
    job = make_job()
    job.write(
        """
        import os
        with open("/opt/ml/output/filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        index = 0
        try:
            while True:
                open(f"/opt/ml/output/{index}", "w").close()
                index += 1
        except OSError:
            pass
        """
    )
    (job.base() / "output").mkdir()
    ended = job.run(tmpfs={"/opt/ml/output": "size=1m,nr_inodes=64"})["algo-1"]
    assert (ended.code, ended.success) == (1, False)
    assert "No space left on device" in ended.output.decode()
    assert "Traceback" not in ended.output.decode()
