"""The `herringbone` command. Each verb has a file of its own, in `train/`, `jobs/` or `machines/`.

To add a verb:

    1. Write `cli/GROUP/VERB.py` with a click command named `command`. It returns the exit code (`cli/common.py` has
       them), takes `--json` (`commands.json_option`), and raises a `HerringboneError` for everything that goes wrong.
    2. Add the verb, its module and its line of help to `_VERBS` below. A command without a docstring gets this line as
       its help.
    3. Import inside of the function what other verbs need not load, and draw tables with `show/tables.py`.

A verb that takes a job's NAME uses `names.job_name`; one that takes several uses the type `names.JobName`; one that
describes a job uses `request.job_flags`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from herringbone.cli.commands import COMPLETION_VARIABLE, MAX_HELP_WIDTH, LazyGroup, mistake, version_option
from herringbone.cli.common import INTERRUPTED, JOB_FAILED, OK, USAGE, complain
from herringbone.records.short_names import RESULTS
from herringbone_contract.errors import HerringboneError, JobNotFoundError, UsageError

# Verb -> its module, which is imported when the verb is used, and its line in the help.
_VERBS = {
    "run": ("herringbone.cli.train.run", "run a job file or a script"),
    "plan": ("herringbone.cli.train.plan", "show what run would do, and start nothing"),
    "rehearse": ("herringbone.cli.train.rehearse", "break short runs of a job, and compare them with undisturbed ones"),
    "tune": ("herringbone.cli.train.tune", "search the hyperparameters of a job, and look at searches"),
    "ls": ("herringbone.cli.jobs.ls", "list the jobs"),
    "top": ("herringbone.cli.jobs.top", "show all jobs live: progress, ETA, loss, use of CPU and GPU"),
    "logs": ("herringbone.cli.jobs.logs", "show a job's log"),
    "metrics": ("herringbone.cli.jobs.metrics", "show the metrics of a job, or of several side by side"),
    "page": (
        "herringbone.cli.jobs.page",
        "show the jobs in a browser: metrics, resources, logs; also several side by side",
    ),
    "report": ("herringbone.cli.jobs.report", "write the page of a job into one HTML file"),
    "export": (
        "herringbone.cli.jobs.export",
        "send the metrics of jobs to MLflow, TensorBoard, Weights & Biases or Trackio",
    ),
    "notify": (
        "herringbone.cli.train.notify",
        "try the destinations that get word of a job's end, or send what they do not have",
    ),
    "stacks": (
        "herringbone.cli.jobs.stacks",
        "show where each rank of a running job is, the one that keeps the others waiting first",
    ),
    "debug": ("herringbone.cli.jobs.debug", "attach a debugger to a rank of a running job"),
    "shell": ("herringbone.cli.jobs.shell", "open a shell, or run a command, where a host of a running job runs"),
    "scale": ("herringbone.cli.jobs.scale", "go on with another number of hosts"),
    "stop": ("herringbone.cli.jobs.stop", "stop a job: SIGTERM to every rank, SIGKILL after the grace"),
    "describe": ("herringbone.cli.jobs.describe", "show a job under SageMaker's key names"),
    "download": ("herringbone.cli.jobs.download", "bring a job's model, output, checkpoints or logs into a new folder"),
    "checkpoint": ("herringbone.cli.jobs.checkpoint", "list, verify and convert checkpoints"),
    "rm": ("herringbone.cli.jobs.rm", "remove jobs that are over, and free their space"),
    "repack": ("herringbone.cli.jobs.repack", "pack the model of a job that is over and has no archive"),
    "clean": ("herringbone.cli.machines.clean", "remove containers and networks of jobs whose controller was killed"),
    "convert": ("herringbone.cli.train.convert", "rewrite a script that uses AWS's SDK v2"),
    "partition": ("herringbone.cli.train.partition", "show how a model was split"),
    "images": ("herringbone.cli.machines.images", "build, list, test, push and remove the images that run jobs"),
    "serve": (
        "herringbone.serve.verb",
        "answer SageMaker's API, and run the training jobs of AWS's clients on your own hosts",
    ),
    "doctor": (
        "herringbone.cli.machines.doctor",
        "examine this machine: what works, what is missing, and how to fix it",
    ),
    "hosts": (
        "herringbone.cli.machines.hosts",
        "check the machines of an inventory, find the jobs on them, or clean up after them",
    ),
    "completion": (
        "herringbone.cli.completion",
        "print the script with which a shell completes verbs, flags and the names of jobs",
    ),
    "help": ("herringbone.cli.help", "show the help of a verb"),
}
_MOMENT_SECONDS = 1.0
_EPILOG = """\
\b
Exit codes:
  0    done
  1    the job failed or the command did (or convert left something)
  2    a mistake in the call
  3    the job was stopped
  4    its time was over (max_run, max_wait)
  130  Ctrl-C

\b
Environment:
  HERRINGBONE_HOME     the folder of the jobs (default ~/.herringbone)
  HERRINGBONE_DEBUG=1  show tracebacks
"""

GROUP = LazyGroup(
    _VERBS,
    name="herringbone",
    help="Train on any hosts: run a job, follow it, stop it.",
    epilog=_EPILOG,
    params=[version_option()],
    context_settings={"max_content_width": MAX_HELP_WIDTH, "help_option_names": ["-h", "--help"]},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> main(["ls"])     # doctest: +SKIP
    0
    """
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        _finish_results()
        # Flush inside of the `try`, because a closed pipe may show only now.
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, for example `head`, has closed the pipe. Python flushes standard output once more when it exits,
        # which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.UsageError as error:
        complain(mistake(error))
        return USAGE
    except HerringboneError as error:
        # A message is enough for a known error; any other exception keeps its traceback.
        if os.environ.get("HERRINGBONE_DEBUG"):
            raise
        complain(f"herringbone: {error}")
        return USAGE if isinstance(error, (UsageError, JobNotFoundError)) else JOB_FAILED


def _run(arguments: list[str]) -> int:
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        return shell_complete(GROUP, {}, "herringbone", COMPLETION_VARIABLE, instruction)
    # Not `GROUP.main`, which turns Ctrl-C and closed pipes into ends of its own.
    try:
        with GROUP.make_context("herringbone", arguments or ["--help"]) as ctx:
            code: int = GROUP.invoke(ctx)
            return code
    # The end of --help and the like.
    except click.exceptions.Exit as done:
        return done.exit_code


def _finish_results() -> None:
    """Wait for the results of jobs that a look has found over: once Python exits, it starts no threads for them."""
    for thread in threading.enumerate():
        if thread.name.startswith(RESULTS):
            # A thread whose job is settled ends in a moment.
            thread.join(_MOMENT_SECONDS)
            if thread.is_alive():
                complain(f"herringbone: fetching the {thread.name}")
                thread.join()


if __name__ == "__main__":
    sys.exit(main())
