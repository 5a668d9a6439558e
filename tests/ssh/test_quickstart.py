"""The quickstart on three machines, by the commands that docs/hosts.md gives: check, run, clean up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from herringbone.jobs.home import Home

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(machines, home: Home, tmp_path: Path):
    """Runs a command as a user whose ssh knows the machines; returns what it writes."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {machines.config} -o ControlPath=none "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(*words: str) -> str:
        environ = {**os.environ, "PATH": path}
        ended = subprocess.run(words, capture_output=True, text=True, env=environ, stdin=subprocess.DEVNULL)
        assert ended.returncode == 0, ended.stdout[-2_000:] + ended.stderr[-2_000:]
        return ended.stdout

    return run


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.ssh
@pytest.mark.timeout(240)  # four processes import torch, three at once
def test_three_machines_train_what_one_process_trains(command, machines):
    Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
    assert json.loads(command("herringbone", "hosts", "check", "hosts.yaml", "--json"))["problems"] == []
    words = ["--instance-type", "ssh:hosts.yaml", "--hosts", "3", "--epochs", "1", "--json"]
    said = command("python", str(ROOT / "examples" / "digits" / "submit.py"), *words)
    assert [f"[algo-{n}:{n - 1}] this rank holds" in said for n in (1, 2, 3)] == [True] * 3
    assert json.loads(said.splitlines()[-1])["difference"] <= 1e-5
    cleaned = json.loads(command("herringbone", "hosts", "clean", "hosts.yaml", "--older-than", "0m", "--json"))
    freed = {each["kind"] for machine in cleaned for each in machine["leftovers"]}
    assert {"job", "code", "data"} <= freed
