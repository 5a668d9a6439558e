"""Helper hosts through fit(): their servers sum the gradients of the ranks, and end when the ranks are done."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from herringbone import Estimator, InstanceGroup, JobFailedError, TrainingJob

SCRIPT = """
import hashlib, os, sys, time
import numpy as np
from herringbone_parallel.reduce.api import Settings, barrier, join

COUNT, STEPS = 40_000, 5
with join(Settings.from_environment()) as engine:
    weights = np.zeros(COUNT, np.float32)
    for step in range(STEPS):
        gradients = np.random.default_rng([step, engine.rank]).standard_normal(COUNT, dtype=np.float32)
        engine.all_reduce(gradients, op="average").wait()
        weights -= gradients
        if step == 2 and engine.rank == 0 and (mood := os.environ.get("MOOD")):
            print("far enough", flush=True)
            sys.exit(7) if mood == "die" else time.sleep(60)
    print("digest", engine.rank, engine.size, hashlib.sha256(weights.tobytes()).hexdigest())
    barrier(engine)
"""
COUNT, STEPS = 40_000, 5


def estimator(folder: Path, instance_type: str, workers: int, helpers: int, **options: object) -> Estimator:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(SCRIPT)
    return Estimator(
        "train.py",
        source_dir=str(folder / "src"),
        instance_groups=[
            InstanceGroup("gpu", instance_type, workers),
            *([InstanceGroup("cpu", instance_type, helpers)] if helpers else []),
        ],
        distribution={"smdistributed": {"dataparallel": {"enabled": True, **({"helpers": "cpu"} if helpers else {})}}},
        **options,
    )


def train(folder: Path, instance_type: str, workers: int, helpers: int, **options: object) -> list[str]:
    """Run a job that must complete, and return its log."""
    job = estimator(folder, instance_type, workers, helpers, **options).fit(logs=False)
    assert job.status == "Completed"
    return [line.text for line in job.logs()]


def start_job(folder: Path, instance_type: str, **options: object) -> TrainingJob:
    """Return a running job of two workers and a helper. Its ranks have summed some gradients, and now wait."""
    job = estimator(folder, instance_type, 2, 1, environment={"MOOD": "long"}, **options).fit(wait=False)
    assert any(line.text == "far enough" for line in job.logs(follow=True))
    return job


def check(lines: list[str], workers: int, helpers: int) -> None:
    digests = {match[3]: match[1] for line in lines if (match := re.fullmatch(r"digest (\d) (\d) (\w{64})", line))}
    assert len([line for line in lines if line.startswith("digest ") and f" {workers} " in line]) == workers
    assert len(digests) == 1, "the same weights on all ranks, without a broadcast"
    stats = [json.loads(line) for line in lines if line.startswith('{"host"')]
    assert sorted(server["host"] for server in stats) == [f"algo-{workers + 1 + number}" for number in range(helpers)]
    # The theory's proportion: two training hosts send half of their gradients to one helper, or all to two helpers.
    share = {1: 0.5, 2: 1.0}[helpers]
    assert sum(server["received_bytes"] for server in stats) == pytest.approx(
        share * workers * STEPS * COUNT * 4, rel=0.02
    )


@pytest.mark.e2e
@pytest.mark.parametrize("helpers", [1, 2])
def test_helper_hosts_of_a_job_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helpers: int) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    check(train(tmp_path, "local_process", 2, helpers), 2, helpers)


@pytest.mark.e2e
@pytest.mark.docker
def test_helper_hosts_in_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    check(train(tmp_path, "local", 2, 1, image_uri=image), 2, 1)


@pytest.mark.e2e
@pytest.mark.docker
def test_a_killed_container_of_a_helper_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: str, engine: Any
) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    job = start_job(tmp_path, "local", image_uri=image)
    engine.kill(f"{job.name}-algo-3")
    began = time.monotonic()
    job.wait()
    assert time.monotonic() - began < 5.0
    assert job.failure is not None
    assert job.failure.render().startswith("algo-3: exit code 137, killed by SIGKILL")


@pytest.mark.e2e
def test_a_failed_rank_is_named_and_not_the_helper_that_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    with pytest.raises(JobFailedError, match=r"rank 0 on algo-1: SystemExit.*exit code 7"):
        estimator(tmp_path, "local_process", 2, 1, environment={"MOOD": "die"}).fit(logs=False)


@pytest.mark.e2e
def test_a_killed_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    job = start_job(tmp_path, "local_process")
    os.kill(server_of(job.name), signal.SIGKILL)
    began = time.monotonic()
    job.wait()
    assert time.monotonic() - began < 8.0
    assert job.failure is not None
    assert job.failure.render().startswith(
        "algo-3: exit code 137, killed by SIGKILL: lost a process of algo-3: the server"
    )


@pytest.mark.e2e
def test_waiting_ranks_name_a_frozen_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    job = start_job(tmp_path, "local_process")
    os.kill(server_of(job.name), signal.SIGSTOP)
    began = time.monotonic()
    job.wait()
    assert time.monotonic() - began < 10.0
    assert job.failure is not None
    assert "the server on algo-3" in job.failure.message


@pytest.mark.e2e
def test_a_stop_ends_helpers_with_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    job = start_job(tmp_path, "local_process")
    began = time.monotonic()
    job.stop()
    job.wait()
    assert time.monotonic() - began < 5.0
    assert job.status == "Stopped", job.failure
    # A server prints its statistics at its end. So the stop let it end by itself.
    assert any(line.text.startswith('{"host": "algo-3"') for line in job.logs())


def server_of(job: str) -> int:
    """Return the pid of a job's only server."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_server = b"herringbone_entry.sidecars.reduce_server" in (folder / "cmdline").read_bytes()
            if is_server and f"TRAINING_JOB_NAME={job}".encode() in (folder / "environ").read_bytes():
                pids.append(int(folder.name))
    (pid,) = pids
    return pid
