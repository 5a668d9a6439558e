"""Examine this machine: all probes at the same time, each judged when it has answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from herringbone.doctor import judgement, probes
from herringbone.doctor.judgement import Check, State
from herringbone_contract.masking import masked_text, printable

# Programs, engines and file systems that hang are reported instead of waited for.
SECONDS = 2.0
# AWS and a proxy on the way to it may be slow, and the user asked for them.
AWS_SECONDS = 20.0
# Local jobs need these, so a probe of one of them that hangs is a failure.
REQUIRED = ("Python", "ports", "disk")

Examination = Callable[[], Check]


def examine(
    *, aws: bool = False, examinations: Mapping[str, Examination] | None = None, seconds: float = SECONDS
) -> tuple[Check, ...]:
    """Examine this machine and return one check per subject, in the order of the table.

    >>> [check.fix for check in examine() if check.state is State.WARNING]     # doctest: +SKIP
    ['pip install --force-reinstall torch']

    Takes at most `seconds`: a probe that has not answered by then becomes a check that says so. With `aws`, AWS is
    asked who the caller is, which may take longer. No check contains a secret. `examinations` replaces the subjects, by
    name.
    """
    subjects = standard(aws=aws) if examinations is None else examinations
    seconds = AWS_SECONDS if aws else seconds
    checks: dict[str, Check] = {}

    def run(name: str, subject: Examination) -> None:
        checks[name] = _guarded(name, subject)

    # Daemons, because the program must be able to end while a probe hangs.
    threads = [
        threading.Thread(target=run, args=item, name=f"doctor-{item[0]}", daemon=True) for item in subjects.items()
    ]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # A late thread still adds to the dict.
    answered = dict(checks)
    return tuple(answered.get(name) or _late(name, seconds) for name in subjects)


def standard(*, aws: bool) -> dict[str, Examination]:
    """Return the subjects of the table, in its order."""
    return {
        "Python": lambda: judgement.judge_python(probes.find_python()),
        "PyTorch": lambda: judgement.judge_torch(probes.find_torch(), probes.count_gpus()),
        "TensorFlow": partial(_framework, "tensorflow"),
        "MXNet": partial(_framework, "mxnet"),
        "MPI": lambda: judgement.judge_mpi(probes.find_mpi()),
        "core of sums": lambda: judgement.judge_core(probes.find_core()),
        "GPUs": lambda: judgement.judge_gpus(probes.find_gpus()),
        "ports": lambda: judgement.judge_ports(probes.try_ports()),
        "disk": lambda: judgement.judge_disk(probes.find_home_disk()),
        "shared memory": lambda: judgement.judge_shared_memory(probes.find_shared_memory()),
        "open files": lambda: judgement.judge_open_files(probes.find_limits()),
        "Docker": lambda: judgement.judge_docker(probes.find_engine(), probes.count_gpus()),
        "ssh": lambda: judgement.judge_ssh(probes.find_ssh()),
        "Slurm": lambda: judgement.judge_slurm(probes.find_slurm()),
        "AWS": lambda: judgement.judge_aws(probes.find_aws(ask=aws)),
    }


def _framework(name: str) -> Check:
    return judgement.judge_framework(name, probes.find_framework(name))


def _guarded(name: str, subject: Examination) -> Check:
    """Run one examination. Texts of programs and services lose their secrets and control characters."""
    try:
        check = subject()
    except Exception as error:  # noqa: BLE001 - one broken subject must not hide all others
        state = State.MISSING if name in REQUIRED else State.WARNING
        text = _shown(f"{type(error).__name__}: {error}")
        return Check(name, state, text, "this is a defect of Herringbone: please report it", name in REQUIRED)
    return Check(check.name, check.state, _shown(check.finding), check.fix, check.required)


def _late(name: str, seconds: float) -> Check:
    state = State.MISSING if name in REQUIRED else State.WARNING
    return Check(name, state, f"no answer within {seconds:g} s", _LATE_FIXES.get(name, _LATE_FIX), name in REQUIRED)


_LATE_FIX = "run the program by hand to see where it hangs"
_LATE_FIXES = {
    "disk": "the file system hangs: set HERRINGBONE_HOME to a folder on another one",
    "Docker": "docker info shows whether the engine hangs; DOCKER_HOST names another one",
    "GPUs": "nvidia-smi hangs: restart the machine",
}


def _shown(text: str) -> str:
    return printable(masked_text(text))
