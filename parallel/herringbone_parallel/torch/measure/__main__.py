"""Measure a training script without training it.

Usage: python -m herringbone_parallel.torch.measure --output FILE [--ranks N] [--device cpu|cuda] [--once]
       [--arguments-in VARIABLE] [--paths FOLDERS] SCRIPT [ARGUMENTS]
       python -m herringbone_parallel.torch.measure --time QUESTION [--job] [--threads N] [--budget S] ... SCRIPT

The script runs unchanged, as rank 0 of N, until its second optimizer step returns. Nothing is computed, and no GPU is
needed. Then it runs as one of 2 N ranks until its first step, which shows whether its batch depends on N.
With --time it computes, for a few steps, and FILE gets their seconds (`timing`).
Exit code 0: FILE is written. 1: the script failed. 2: wrong options. 3: the script made no step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.hugging_face import accept_added_arguments

if TYPE_CHECKING:
    from herringbone_parallel.torch.measure.script import Session
    from herringbone_parallel.torch.measure.timing import Line

# The second one is a code that scripts do not use, which may end this process by `os._exit`.
FAILED, NO_STEP = 1, 98
_PACKAGE = str(Path(__file__).parent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the script that the arguments name; return the exit code."""
    options = _parse(arguments)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return _say(f"measuring needs torch, which cannot be imported: {error}. pip install '.[torch]'", NO_STEP)
    from herringbone_parallel.core.prediction.measurement import to_text
    from herringbone_parallel.torch.measure import script
    from herringbone_parallel.torch.measure.timing import started

    output, options.script = options.output.absolute(), options.script.absolute()
    if options.time is not None:
        return _time(options, output)
    # Before any thread starts and the script has run: the second run is a process that waits until the first is over,
    # so that the two never use the same files at once.
    with started(0 if options.once else 1, lambda _, line: _first_batch_again(options, line)) as (pipes, _):
        session, begin = _session(options, options.ranks, steps=2), time.monotonic()
        try:
            with session.measuring(), script.reporting(session.where, Path(options.paths[-1])):
                script.run(options.script, options.arguments)
        except SystemExit as error:
            if error.code:
                if isinstance(error.code, str):
                    print(error.code, file=sys.stderr)
                return _say(f"the script ended with exit code {error.code}: {session.where()}", FAILED)
        except KeyboardInterrupt:
            return 130
        except Exception as error:  # noqa: BLE001  the user's script may raise anything
            _show(error)
            return FAILED
        try:
            for pipe in pipes:
                session.compare(_answer(pipe, 2 * (time.monotonic() - begin) + 5))
            output.write_bytes(to_text(session.result()))
        except ParallelError as error:
            return _say(str(error), NO_STEP)
    return 0


def _first_batch_again(options: argparse.Namespace, line: Line) -> int | None:
    """Run the script with twice the ranks, without its output; return the samples of its first step."""
    from herringbone_parallel.torch.measure import script

    line.agreed(0.0)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    session = _session(options, 2 * options.ranks, steps=1)
    with session.measuring():
        script.run(options.script, options.arguments)
    return session.first_batch()


def _answer(pipe: Connection, seconds: float) -> int | None:
    """Let the second run begin; return its answer, None if it fails or has none after `seconds`."""
    with suppress(OSError, EOFError):
        pipe.recv_bytes()
        pipe.send_bytes(b"1")
        if pipe.poll(seconds):
            return json.loads(pipe.recv_bytes())  # type: ignore[no-any-return]
    return None


def _time(options: argparse.Namespace, output: Path) -> int:
    from herringbone_parallel.core.prediction.measurement import to_text
    from herringbone_parallel.torch.measure.timing import time_script

    try:
        output.write_bytes(to_text(time_script(options, lambda ranks: _enter(options, ranks))))
    except ParallelError as error:
        return _say(str(error), NO_STEP)
    return 0


def _session(options: argparse.Namespace, ranks: int, steps: int) -> Session:
    from herringbone_parallel.torch.measure.environment import is_version_1
    from herringbone_parallel.torch.measure.script import Session

    _enter(options, ranks)
    return Session(ranks=ranks, device=options.device, steps=steps, pipelined=is_version_1(os.environ))


def _enter(options: argparse.Namespace, ranks: int) -> None:
    """Enter the folder of the code, with the environment and the search path of rank 0 of `ranks`, 0 for the job's."""
    from herringbone_parallel.torch.measure.environment import MEASURING, measured_environment

    accept_added_arguments()
    for name, value in (measured_environment(os.environ, ranks=ranks) if ranks else {MEASURING: "1"}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    code = options.paths[-1]
    os.chdir(code)
    sys.path[:0] = options.paths
    # For Pythons that the script starts. Set here: before, a module of the user's would hide one of this program's.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m herringbone_parallel.torch.measure", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="the file of the measurement, JSON")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks of the job (%(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="the job's device (%(default)s)")
    parser.add_argument("--paths", help="first folders of sys.path, the code's last (the script's own folder)")
    parser.add_argument("--time", type=Path, metavar="QUESTION", help="time steps for a question to the predictor")
    parser.add_argument("--job", action="store_true", help="with --time: time the job's ranks together, too")
    parser.add_argument("--threads", type=int, default=1, help="threads of each rank that is timed (0: torch's number)")
    parser.add_argument("--budget", type=float, default=5.0, metavar="S", help="seconds of timed steps (%(default)s)")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.add_argument("--once", action="store_true", help="do not run the script again to see if its batch divides")
    parser.add_argument("--arguments-in", metavar="VARIABLE", help="variable with the script's arguments, a JSON list")
    options = parser.parse_args(arguments)
    if options.arguments_in is not None:
        options.arguments = json.loads(os.environ[options.arguments_in])
    if options.ranks < 1:
        parser.error("--ranks is 1 or more")
    if not options.script.is_file():
        parser.error(f"{options.script} is no file")
    options.paths = options.paths.split(os.pathsep) if options.paths else [str(options.script.absolute().parent)]
    return options


def _say(text: str, code: int) -> int:
    print(f"measure: {text}", file=sys.stderr)
    return code


def _show(error: BaseException) -> None:
    """Print the traceback of the script's exception without the frames of the measurement."""
    shown = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException | None] = [shown]
    while chain:
        link = chain.pop()
        if link is not None:
            kept = [frame for frame in link.stack if not frame.filename.startswith(_PACKAGE)]
            link.stack = traceback.StackSummary.from_list(kept)
            chain += [link.__cause__, link.__context__]
    print("".join(shown.format()), end="", file=sys.stderr)


def _leave(code: int) -> NoReturn:
    """End the process without Python's shutdown, at which the script's libraries would write and wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
