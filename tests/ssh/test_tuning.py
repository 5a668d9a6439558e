"""Searches on three machines, and in containers, have the trials of a search in processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.tuned import comparable, tuner, write_digits

from .small_image import make_small_image

pytest.importorskip("sklearn")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
IMAGE = "herringbone-test-tuning:1"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERRINGBONE_REPORT", "off")
    monkeypatch.chdir(tmp_path)
    return str(write_digits(tmp_path / "data"))


@pytest.fixture
def inventory(machines, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An inventory of three machines that see this disk, known to the ssh on PATH."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {machines.config} -o ControlPath=none "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    path = tmp_path / "hosts.yaml"
    path.write_text(yaml.safe_dump(machines.inventory(shared=[str(tmp_path / "shared")])))
    (tmp_path / "shared").mkdir()
    return f"ssh:{path}"


@pytest.fixture(scope="module")
def small_image(engine: Any) -> Iterator[str]:
    make_small_image(engine, IMAGE)
    yield IMAGE
    engine.remove_image(IMAGE)


def search(strategy: str, data: str, name: str, **options: Any) -> tuple[list[tuple[Any, ...]], str]:
    """Return the trials of a search, and the number of the best one."""
    searching = tuner(strategy, **options)
    searching.fit(data, job_name=name)
    return comparable(searching.trials()), searching.best_training_job().rpartition("-")[2]


@pytest.mark.ssh
def test_three_machines_find_the_best_trial_of_one(inventory: str, data: str, tmp_path: Path) -> None:
    here = search("Random", data, "here", jobs=3, instance_type="local_process")
    # One machine for each trial, two trials at a time.
    assert search("Random", data, "apart", jobs=3, instance_type=inventory) == here


@pytest.mark.ssh
def test_trials_that_span_three_machines_continue_in_a_shared_folder(inventory, data, tmp_path) -> None:
    found = []
    for name, options in (
        ("here", {"instance_type": "local_process"}),
        ("spans", {"instance_type": inventory, "instance_count": 3, "checkpoint_s3_uri": str(tmp_path / "shared")}),
    ):
        searching = tuner("Hyperband", jobs=2, **options)
        # Three machines run one trial of three hosts at a time.
        searching.max_parallel_jobs = 1
        searching.fit(data, job_name=name)
        found.append(comparable(searching.trials()))
    assert found[0] == found[1]
    assert any(resumes is not None for _, _, _, resumes, _, _ in found[0])


@pytest.mark.docker
@pytest.mark.parametrize("strategy", ["Hyperband"])
def test_containers_find_the_best_trial_of_processes(strategy: str, data: str, small_image: str) -> None:
    if strategy == "Bayesian":
        pytest.importorskip("optuna")
    here = search(strategy, data, "here", jobs=3, instance_type="local_process")
    contained = search(strategy, data, "contained", jobs=3, instance_type="local", image_uri=small_image)
    assert contained == here
