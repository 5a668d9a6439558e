"""What srun and slurmstepd write about a host's step, as its controller reads it."""

from __future__ import annotations

import pytest

from herringbone.controller.log_files import LogFile
from herringbone.controller.slurm_steps import OUT_OF_MEMORY, StepHost
from herringbone.controller.verdict import HostEnd, judge


@pytest.mark.parametrize(
    "line",
    [
        # Of JobAcctGatherParams=OverMemoryKill, of the kernel's cgroup, and of srun.
        b"slurmstepd: error: StepId=2.1 exceeded memory limit (942923776 > 314572800), being killed",
        b"slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=2.1. Some of your processes",
        b"slurmstepd: error: Detected 1 oom_kill event in StepId=2.1. Some of the step tasks have been OOM Killed.",
        b"srun: error: n2: task 0: Out Of Memory",
    ],
)
def test_a_step_without_memory_is_no_lost_node(tmp_path, line):
    """Slurm killed its supervisor, so each of four attempts blamed another healthy node."""
    host = StepHost({"name": "algo-2", "base": str(tmp_path)}, LogFile(str(tmp_path / "log")), "n2")
    host._text(b"[algo-2] rank 1: slurmstepd: error: oom-kill\n")
    assert host.cause == ""
    host._text(b"[algo-2] up\n" + line + b"\n")
    verdict = judge([HostEnd("algo-2", 137, cause=host.cause, lost=host.lost)])
    assert (verdict.lost, verdict.failure.message) == (None, OUT_OF_MEMORY)
