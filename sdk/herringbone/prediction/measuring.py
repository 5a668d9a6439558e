"""Measure one step of a job's script in a process of its own, which has the environment of rank 0 and trains nothing.

    scratch/jobs/x/hosts/algo-1/ml    the host's tree: a copy of the code, links to the data, empty folders for output
    scratch/work                      the current folder of the process

The script may be somebody else's. So it runs in namespaces (`guard`), without a network, in a view of the files whose
changes nobody else sees, and with the variables of the job alone. Its result comes back through a descriptor, and is
text that anybody may have written. Nobody but the user reads the script's output: the error shows its end. Ctrl-C and
the timeout end the process group.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from herringbone.plan.inputs import Channel, TrainingInput, local_path
from herringbone.plan.plan import JobPlan
from herringbone.prediction.cache import write
from herringbone.prediction.guard import REFUSED
from herringbone.records.home import Home, JobFolder
from herringbone_contract.constants import BASE_VARIABLE, HostVariable
from herringbone_contract.distribution import Launcher
from herringbone_contract.errors import InputError, MeasurementError, UnsupportedError
from herringbone_contract.masking import printable
from herringbone_contract.prediction.question import Question

# Ends the program when this process is killed, which cannot end it then. Isolated: the user's folders have no say.
_GUARD = (sys.executable, "-I", str(Path(__file__).with_name("guard.py")))
# The variables of this machine that the job has; all others are the user's own.
_MACHINE = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ"),
    *("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME"),
)
_MOST_RESULT_BYTES = 1 << 30
PROGRESS_MARK = "measure: "
# The measuring program's code for a script that took no step; its last line of progress says why.
_NO_STEP_CODE = 98
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 2.0
_TAIL_LINES = 25
_TAIL_BYTES = 64 * 1024
_OTHER_LAUNCHERS = {
    Launcher.PARAMETER_SERVER: "TensorFlow",
    Launcher.MULTI_WORKER_MIRRORED: "TensorFlow",
    Launcher.MXNET_PARAMETER_SERVER: "MXNet",
}
_OTHER_ESTIMATORS = ("TensorFlow", "MXNet")


class Program(NamedTuple):
    """A program that measures; those of tests are not `alone` in namespaces."""

    words: Sequence[str]
    alone: bool = True


# Nothing but the environment of a rank comes from the program of a host.
MEASURE = Program((sys.executable, "-m", "herringbone_entry.measure"))


class Step(NamedTuple):
    """The job that the script sees while it is measured: all ranks, those of its host, GPUs, "cpu" or "cuda"."""

    ranks: int
    local_ranks: int
    gpus: int
    device: str


class Timing(NamedTuple):
    """The way to time steps: a question to the predictor, threads of each rank, seconds of timed steps.

    With `job` the ranks of the job itself run together, too.
    """

    question: Question
    threads: int
    seconds: float
    job: bool


def check_measurable(plan: JobPlan, has_torch: Callable[[], bool] | None = None) -> None:
    """Raise `UnsupportedError` for a job whose script cannot be measured here, with the reason."""
    framework = _OTHER_LAUNCHERS.get(plan.distribution.launcher) or next(
        (name for name in _OTHER_ESTIMATORS if plan.estimator == name), None
    )
    if framework is not None:
        raise UnsupportedError(f"measure: a script of {framework} is not measured, only PyTorch's; plan without it")
    if plan.source is None:
        raise UnsupportedError("measure: an image with a program of its own is not measured; give entry_point")
    if sys.platform != "linux":
        raise UnsupportedError("measure: a script is measured in namespaces of Linux, which this system does not have")
    if plan.backend == "local":
        raise UnsupportedError(
            "measure: hosts of instance_type local are containers, and a step is measured in a process of this machine;"
            " allow that with --instance-type local_process. Memory and times of a container are the same"
        )
    if not plan.source.entry_point.endswith(".py"):
        raise UnsupportedError(
            f"measure: entry_point: {plan.source.entry_point} is no Python script, and only those are measured; plan"
            " without it"
        )
    if plan.source.remote:
        raise UnsupportedError(
            f"measure: source_dir: {plan.source.archive} is not on this machine; copy the code here and give its path"
        )
    if not (has_torch or _has_torch)():
        raise UnsupportedError(
            f"measure: {sys.executable} has no PyTorch, and one step of the script runs there: pip install '.[torch]'"
        )


def with_local_data(plan: JobPlan, data: Mapping[str, str]) -> JobPlan:
    """Return a plan whose channels are all on this machine: `data` gives folders for those that are elsewhere.

    Raises `InputError` for a channel without one, and for a name that is no channel of the job.
    """
    names = [channel.name for channel in plan.channels]
    for name in data:
        if name not in names:
            raise InputError(f"measure data: the job has no channel {name!r}; it has: {', '.join(names) or 'none'}")
    channels = tuple(_local(channel, data.get(channel.name), plan.folder) for channel in plan.channels)
    return msgspec.structs.replace(plan, channels=channels)


def measure(
    plan: JobPlan,
    step: Step,
    output: Path,
    *,
    home: Home,
    timeout: float,
    show: Callable[[str], None],
    program: Program = MEASURE,
    timing: Timing | None = None,
) -> None:
    """Measure one step of the plan's script, or time its steps, and write `output`; `show` gets lines of progress.

    Raises `MeasurementError` when the script fails, takes no step or is too slow.
    """
    with tempfile.TemporaryDirectory(prefix="herringbone-measure-") as scratch:
        base = _fill(plan, Path(scratch), home)
        # The user may sit in a folder with modules of any name, and `-m` looks there first.
        work = Path(scratch, "work")
        work.mkdir()
        ranks, local = step.ranks, step.local_ranks
        options = ["--ranks", str(step.ranks), "--device", step.device]
        if timing is not None:
            # The ranks of the job run together, too. Those that run alone see the ranks with batches of their own.
            hosts, file = timing.question.hosts, Path(scratch, "question.json")
            ranks, local = hosts.count * hosts.ranks_per_host, hosts.ranks_per_host
            file.write_bytes(msgspec.json.encode(timing.question))
            options += ["--time", str(file), "--threads", str(timing.threads), "--budget", f"{timing.seconds:g}"]
            options += ["--job"] if timing.job else []
        words = ["--ranks", str(ranks), "--local-ranks", str(local), "--gpus", str(step.gpus), "--", *options]
        environment = {
            **plan.environment,
            BASE_VARIABLE: str(base),
            HostVariable.JOB_NAME: plan.script_job_name,
            HostVariable.CACHE: str(home.cache),
        }
        text = run_program(
            [*program.words, *words],
            environment,
            work,
            timeout=timeout,
            show=show,
            alone=program.alone,
        )
        write(output, text)


def run_program(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    timeout: float,
    show: Callable[[str], None],
    alone: bool = True,
    guard: Sequence[str] = _GUARD,
) -> str:
    """Run a program in namespaces of its own until it ends; return what it writes into the file after `--output`.

    It has `environment` and the variables of the machine. `show` gets its lines that begin with PROGRESS_MARK. All of
    its processes end with this one, however that ends. Raises `MeasurementError` with the end of its output when it
    fails, or runs longer than `timeout` seconds, and `UnsupportedError` where the system allows no namespaces. With
    `alone` False there are none, for programs of tests.
    """
    log, view = folder / "output.log", folder / "view"
    view.mkdir()
    # Files without a name, in memory: variables may be secrets.
    with open(os.memfd_create("environment"), "w+") as variables, open(os.memfd_create("result"), "rb") as result:  # noqa: PTH123
        json.dump({**machine_variables(), **environment}, variables)
        variables.seek(0)
        given = (str(variables.fileno()), str(view) if alone else "")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*guard, *given, *words, "--output", f"/proc/self/fd/{result.fileno()}"],
                # Not the job's variables: a loader's would find a process outside of the namespaces.
                env=machine_variables(),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(variables.fileno(), result.fileno()),
            )
        try:
            code, last = _wait(process, log, time.monotonic() + timeout, show)
        finally:
            # Also after Ctrl-C and a timeout, and for processes that the script has left behind.
            _end(process)
        text = result.read(_MOST_RESULT_BYTES)
    if code is None:
        raise MeasurementError(
            f"the script took no optimizer step within {timeout:.0f} s; give it more time (--measure-timeout), or look"
            f" where it is: {last or 'it has not begun'}. The end of its output:\n{_tail(log)}"
        )
    if code == REFUSED:
        raise UnsupportedError(
            "measure: a script is measured in namespaces of Linux, and this system refuses them; measure on another"
            f" machine, or as another user: {_tail(log)}"
        )
    if code == _NO_STEP_CODE and last:
        raise MeasurementError(f"{last}. The end of the script's output:\n{_tail(log)}")
    if code != 0:
        raise MeasurementError(f"the script could not be measured, exit code {code}:\n{_tail(log)}")
    if not text:
        raise MeasurementError(f"the script ended the process that measures it, which has no result:\n{_tail(log)}")
    return text.decode(errors="replace")


def machine_variables() -> dict[str, str]:
    """Return the variables that programs get from this machine; all others are the user's own, such as credentials."""
    # Imported here: it brings the whole start of jobs.
    from herringbone.system.detached_process import search_path

    return {**{name: os.environ[name] for name in _MACHINE if name in os.environ}, **search_path()}


def _wait(
    process: subprocess.Popen[bytes], log: Path, deadline: float, show: Callable[[str], None]
) -> tuple[int | None, str]:
    """Return the exit code, None after the deadline, and the last line of progress."""
    last = ""
    with log.open("rb") as written:
        while True:
            code = process.poll()
            for line in written.read().decode(errors="replace").splitlines():
                if line.startswith(PROGRESS_MARK):
                    last = printable(line.removeprefix(PROGRESS_MARK)).rstrip(".")
            if last:
                # Also where nothing is new: the seconds of a long phase are.
                show(last)
            if code is not None or time.monotonic() > deadline:
                return code, last
            time.sleep(_POLL_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    finally:
        # Also when a second Ctrl-C ends the wait, and for children that live longer than the script.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _fill(plan: JobPlan, scratch: Path, home: Home) -> Path:
    """Fill the tree of the first host that trains, and return its base."""
    from herringbone.backends.process.tree import fill_host

    # Checkpoints and TensorBoard's files of the real job must neither be read nor written.
    options = msgspec.structs.replace(plan.options, checkpoint_s3_uri=None, tensorboard_output_config=None)
    host = next(host for host in plan.hosts if host.ranks != 0)
    folder = JobFolder(scratch / "jobs" / "measured")
    fill_host(msgspec.structs.replace(plan, options=options), host, folder, exclude=home.path)
    return folder.host(host.name)


def _local(channel: Channel, sample: str | None, folder: str) -> Channel:
    if sample is None:
        if channel.path is None:
            raise InputError(
                f"channel {channel.name!r}: {channel.input.s3_data} is not on this machine, and a step is measured with"
                f" real samples; give a local folder with some: --measure-data {channel.name}=FOLDER"
            )
        return channel
    path = local_path(sample, base=Path(folder))
    if path is None or not path.exists():
        raise InputError(f"measure data: channel {channel.name!r}: {sample}: no such file or folder on this machine")
    return Channel(name=channel.name, input=TrainingInput(str(path)), path=str(path))


def _tail(log: Path) -> str:
    """Return the last lines of the output, without those about progress."""
    text = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    lines = [printable(line) for line in text.splitlines() if not line.startswith(PROGRESS_MARK)]
    return "\n".join(lines[-_TAIL_LINES:]) or "it wrote nothing"


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
