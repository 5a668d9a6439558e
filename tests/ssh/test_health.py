"""Machines are examined before the first step: an unfit one is left out, a slow one named."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from herringbone.backends.ssh.inspection.check import check
from herringbone.backends.ssh.machines.inventory import parse_inventory
from herringbone.cli.machines.hosts import table

from .machines import Machines

pytestmark = pytest.mark.ssh
pytest.importorskip("torch")
SCRIPT = "print('first step')"


@contextlib.contextmanager
def mounted(machines: Machines, name: str, path: str, *source: str) -> Iterator[None]:
    """Mount something at a path of a machine, whose processes have a tree of mounts of their own."""
    inside = ["nsenter", f"--target={machines.first_process(name)}", "--mount", "--pid"]
    subprocess.run([*inside, "mount", *source, path], check=True)
    try:
        yield
    finally:
        subprocess.run([*inside, "umount", "--lazy", path], check=True)


def full_shared_memory(machines: Machines, name: str) -> contextlib.AbstractContextManager[None]:
    return mounted(machines, name, "/dev/shm", "-t", "tmpfs", "-o", "size=64k", "none")


def own_kernel(machines: Machines, name: str, tmp_path: Path) -> contextlib.AbstractContextManager[None]:
    """Make a machine look like one with a kernel of its own: namespaces share theirs."""
    (tmp_path / "boot_id").write_text("another kernel\n")
    return mounted(machines, name, "/proc/sys/kernel/random/boot_id", "--bind", str(tmp_path / "boot_id"))


@contextlib.contextmanager
def slow_link(machines: Machines, name: str) -> Iterator[None]:
    """Let a machine send 20 Mbit/s, where the others send 1,000."""
    change = [*machines.inside(name), "tc", "qdisc", "change", "dev", "eth0", "root", "tbf"]
    subprocess.run([*change, "rate", "20mbit", "burst", "64kb", "limit", "1mb"], check=True)
    try:
        yield
    finally:
        subprocess.run([*change, "rate", "1000mbit", "burst", "64kb", "limit", "1mb"], check=True)


def test_a_machine_that_cannot_train_is_left_out_while_others_are_free(machines, submit, tmp_path) -> None:
    with full_shared_memory(machines, "h-2"), own_kernel(machines, "h-2", tmp_path):
        # Without an option: hosts on several machines are examined, and no attempt of the job's own is spent.
        job = submit(SCRIPT, hosts=2, name="unfit")
        lines = [line.text for line in job.logs(follow=True)]
        job.wait()
    assert job.status == "Completed"
    why = "unhealthy_host: algo-2: No space left on device: /dev/shm"
    assert any(f"attempt 2 of 2: {why}; restarting on h-1, h-3, without h-2 from now on" in line for line in lines)
    assert sum("first step" in line for line in lines) == 2
    assert why.partition(": ")[2] in [event["why"] for event in job.events() if event["kind"] == "fault"]


def test_without_another_machine_the_job_fails_by_the_name_of_the_fault(machines, submit) -> None:
    with full_shared_memory(machines, "h-2"):
        job = submit(SCRIPT, hosts=3, name="alone", enable_infra_check=True)
        list(job.logs(follow=True))
    assert job.status == "Failed"
    assert "unhealthy_host: algo-2: No space left on device: /dev/shm; the job could not be restarted" in str(
        job.failure
    )


def test_a_slow_link_is_named_and_the_job_runs(machines, submit) -> None:
    with slow_link(machines, "h-2"):
        job = submit(SCRIPT, hosts=3, name="slow", enable_infra_check=True)
        lines = [line.text for line in job.logs(follow=True)]
    assert job.status == "Completed"
    warnings = "\n".join(line for line in lines if line.startswith("warning: "))
    assert re.search(r"^warning: algo-2: it sends [12]\d", warnings, re.MULTILINE), warnings


def test_a_deep_check_of_the_inventory_uses_the_same_rules(machines, transport) -> None:
    with slow_link(machines, "h-3"), full_shared_memory(machines, "h-1"):
        report = check(parse_inventory(machines.inventory(), "hosts.yaml"), transport, seconds=0.2, deep=True)
    assert "h-1: No space left on device: /dev/shm" in report.problems
    assert re.search(r"^h-3: it sends [12]\d", "\n".join(report.problems), re.MULTILINE), report.problems
    lines = [line for line in table(report) if line.startswith("health: ")]
    assert [line.partition(": ")[2][:4] for line in lines] == ["h-1:", "h-2:", "h-3:"]
    assert all("1 of 1 devices compute right; all-reduce of " in line for line in lines)
