"""Test of the quickstart on three machines with the commands of docs/do/ssh.md: check, run, clean up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from herringbone.records.home import Home

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(machines, home: Home, tmp_path: Path):
    """A function that runs a command as a user whose ssh knows the machines, and returns its output."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {machines.config} -o ControlPath=none "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(*words: str) -> str:
        environ = {**os.environ, "PATH": path}
        result = subprocess.run(words, capture_output=True, text=True, env=environ, stdin=subprocess.DEVNULL)
        assert result.returncode == 0, result.stdout[-2_000:] + result.stderr[-2_000:]
        return result.stdout

    return run


@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.ssh
@pytest.mark.timeout(240)  # four processes import torch, three at once
def test_three_machines_train_the_weights_of_one_process(command, machines):
    Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
    checked = json.loads(command("herringbone", "hosts", "check", "hosts.yaml", "--json"))
    assert (checked["problems"], [machine["name"] for machine in checked["machines"]]) == ([], machines.names)
    words = ["--instance-type", "ssh:hosts.yaml", "--hosts", "3", "--epochs", "1", "--json"]
    output = command("python", str(ROOT / "examples" / "digits" / "submit.py"), *words)
    assert [f"[algo-{n}:{n - 1}] this rank holds" in output for n in (1, 2, 3)] == [True] * 3
    assert json.loads(output.splitlines()[-1])["difference"] <= 1e-5
    reports = json.loads(command("herringbone", "hosts", "clean", "hosts.yaml", "--older-than", "0m", "--json"))
    freed = {files["kind"] for report in reports for files in report["leftovers"]}
    assert {"job", "code", "data"} <= freed
