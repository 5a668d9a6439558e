"""The `herringbone` command. Each verb has a file of its own."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from herringbone.cli.common import INTERRUPTED, JOB_FAILED, OK, USAGE
from herringbone_contract.errors import HerringboneError, JobNotFoundError, UsageError
from herringbone_contract.masking import printable

# Each has a module of its own in this package.
_VERBS = (
    *("run", "plan", "ls", "logs", "stop", "describe", "download", "repack", "clean", "convert", "partition"),
    *("images", "hosts"),
)
_EPILOG = """\
exit codes: 0 done, 1 the job failed or the command did (or convert left something), 2 a mistake in the call,
            3 the job was stopped, 4 its time was over (max_run, max_wait), 130 Ctrl-C
environment: HERRINGBONE_HOME is the folder of the jobs (default ~/.herringbone); HERRINGBONE_DEBUG=1 shows tracebacks
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> main(["ls"])     # doctest: +SKIP
    0
    """
    # argparse would take the script's arguments after `--` for positional ones of the verb.
    arguments, script_arguments = _split(sys.argv[1:] if argv is None else list(argv))
    # The module of one verb loads in a third of the time of all: only help and mistakes need the others.
    parser = _parser([arguments[0]] if arguments and arguments[0] in _VERBS else _VERBS)
    args = parser.parse_args(arguments)
    args.script_arguments = script_arguments
    if script_arguments and args.verb not in ("run", "plan"):
        parser.error(f"{args.verb} takes no arguments after --")
    try:
        code: int = args.run(args)
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
    except HerringboneError as error:
        # A message is enough for a known error; any other exception keeps its traceback.
        if os.environ.get("HERRINGBONE_DEBUG"):
            raise
        # A message may quote a log, a name or an answer of a service: only its line breaks are ours.
        text = "\n".join(map(printable, str(error).split("\n")))
        print(f"herringbone: {text}", file=sys.stderr)
        return USAGE if isinstance(error, (UsageError, JobNotFoundError)) else JOB_FAILED


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="herringbone",
        description="Train on any hosts: run a job, follow it, stop it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in names:
        importlib.import_module(f"herringbone.cli.{name}").add_to(verbs)
    return parser


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into our own and the script's, which follow `--`."""
    if "--" not in arguments:
        return arguments, []
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut + 1 :]


if __name__ == "__main__":
    sys.exit(main())
