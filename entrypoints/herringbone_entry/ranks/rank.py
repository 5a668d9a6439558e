"""One rank: attach to this host's supervisor, run the user's program in this process, report how it ended.

A script runs as `__main__`, as `python script.py` would run it. Any end but a normal one is reported with the user's
frames, and then the process exits at once: a Python that shuts down after an exception would wait in MPI_Finalize for
ranks that wait for it.

    [1] connect to the supervisor        [3] run the program
    [2] take the start message           [4] report its end, wait for leave, exit

Every rank pays for this module's imports at its start, so modules for its end are imported there.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import fcntl
import io
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

from herringbone_entry.channel import attach
from herringbone_entry.channel.frames import Message, Wire, WireError
from herringbone_entry.ranks import teardown
from herringbone_entry.ranks.opt_ml import OPT_ML, refuse_other_jobs_files
from herringbone_entry.ranks.start import start_message

_MAX_FRAMES = 20
_MAX_MESSAGE_CHARS = 4_000
# `os._exit` is replaced below, and this name keeps the original.
_really_exit = os._exit


def main() -> None:
    """Run one rank to its end."""
    # [1] [2]
    wire = connect()
    try:
        message = start_message(wire)
    except EOFError:
        os._exit(0)  # the supervisor is gone, or has no use for this rank
    # Under mpirun the output pipes come with the message: mpirun's own forwarding would cut and mix lines.
    *outputs, lifeline = wire.descriptors
    os.set_inheritable(lifeline, False)
    for descriptor, target in zip(outputs, (1, 2), strict=False):
        os.dup2(descriptor, target)
        os.close(descriptor)
    # The user's program, and programs that it starts, must not attach a second time.
    for name in (attach.REPORT, attach.LAYOUT, attach.RUN_FOLDER, *attach.SESSION_FOLDERS):
        os.environ.pop(name, None)
    os.environ.update(message["environment"])
    _pass_on(message.pop("secrets"), inheritable=message["entry"] == "program")
    several = int(message["environment"]["WORLD_SIZE"]) > 1
    if message["entry"] != "program":
        from herringbone_entry.ranks import host_names, import_hooks

        # Orders of a lone rank come by signal only: it waits for no other rank.
        import_hooks.install(message["listen"], message["orders"] if several else "", message["trainer_hooks"])
        host_names.install(os.environ)
        if preimport := sys.modules.get("herringbone_entry.ranks.ahead.preimport"):
            preimport.act_on_imported()
    take_orders(message["orders"])
    os.chdir(message["code"])
    refuse_other_jobs_files(os.environ.get("SAGEMAKER_BASE_DIR", OPT_ML))
    report = Report(wire, message["code"], lifeline)
    sys.excepthook = _excepthook(message["code"])
    # A process that a signal kills cannot report; its frames then come from this dump in the log.
    faulthandler.enable()
    if message["orders"]:
        _write_stacks_on_signal(message["orders"])
    _line_buffer()
    os._exit = report.exit_hook
    # [3]
    try:
        if message["entry"] == "program":
            report.leave(_run_program(message), None)
        _run_python(message)
    except SystemExit as error:
        code = _code_of(error)
        if code:
            report.leave(code, error)
    except KeyboardInterrupt as error:
        _show(error)
        report.leave(128 + signal.SIGINT, error)
    except BaseException as error:  # noqa: BLE001 - the user's program may raise anything
        _show(error)
        report.leave(1, error)
    if writer := sys.modules.get("herringbone_parallel.torch.checkpoint.api"):
        from herringbone_entry.ranks import last_saves

        last_saves.finish(writer, _show, report.leave)
    report.done()
    teardown.run_exit_functions(_show)
    report.over()


def take_orders(folder: str) -> None:
    """Obey the supervisor's orders: a signal announces each of them, and `folder` holds its content; "" for none.

    Nothing is imported and no thread runs before the first order. A forked child inherits this, but no signal comes.
    """

    def obey(_number: int, _frame: FrameType | None) -> None:
        from herringbone_entry.ranks import orders

        orders.obey(folder)

    # macOS has no such signal.
    if folder and sys.platform == "linux":
        signal.signal(attach.ORDER_SIGNAL, obey)


def connect() -> Wire:
    """Return the link to this host's supervisor, over which the start message comes."""
    inherited = os.environ.get(attach.REPORT)
    if inherited is not None:
        connection = socket.socket(fileno=int(inherited))
        # A child of the user's program must not hold the link: its end is how the supervisor sees this rank die.
        connection.set_inheritable(False)
        return Wire(connection)
    rank = next(int(os.environ[name]) for name in attach.MPI_RANK_VARIABLES if name in os.environ)
    connection = socket.socket(socket.AF_UNIX)
    host = attach.host_of(rank, os.environ[attach.LAYOUT])
    connection.connect(attach.socket_path(os.environ[attach.RUN_FOLDER], host))
    wire = Wire(connection)
    wire.send({"kind": "hello", "rank": rank, "pid": os.getpid()})
    return wire


def _write_stacks_on_signal(folder: str) -> None:
    """Append the stacks of all threads to a file at each signal; forked children inherit this, programs do not."""
    # A full disk, or a system without this signal, costs the stacks and not the job.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        file = os.open(f"{folder}/stacks-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # The handler is in C: it also runs while the main thread waits in a library, or another one holds the GIL.
        faulthandler.register(attach.STACKS_SIGNAL, file=file, all_threads=True, chain=False)


class Report:
    """Reports to the supervisor how this process ends; a forked child reports nothing."""

    def __init__(self, wire: Wire, code: str, lifeline: int) -> None:
        self._wire, self._lifeline = wire, lifeline
        self._code = os.path.realpath(code)  # noqa: PTH - pathlib costs 5 ms
        self._pid = os.getpid()
        # A forked child that outlives this process must not hold the link open: the supervisor would see no end.
        os.register_at_fork(after_in_child=wire.close)
        self._die_with_supervisor(True)

    def done(self) -> None:
        """Report that the program has ended well; its threads and exit functions remain."""
        with contextlib.suppress(OSError):
            self._wire.send({"kind": "done"})

    def over(self) -> None:
        """Report that these have ended, too; only Python's own teardown remains."""
        with contextlib.suppress(OSError):
            self._wire.send({"kind": "over"})

    def leave(self, code: int, error: BaseException | None, frame: FrameType | None = None) -> NoReturn:
        """Report the end [4], wait until the supervisor lets this rank go, and exit."""
        message: Message = {"kind": "leaving", "code": code & 0xFF, "exception": "", "message": "", "frames": []}
        if error is not None:
            # Texts are cut: the supervisor keeps the record in memory and in one message.
            message["exception"] = type(error).__name__
            message["message"] = _text_of(error)
            message["frames"] = self._frames(_frames_of(error))
            message["record"] = _flight_record()
        elif frame is not None:
            message["exception"] = "os._exit"
            message["message"] = f"the program called os._exit({code})"
            message["frames"] = self._frames(_stack_of(frame))
        if outbox := sys.modules.get("herringbone_contract.events.outbox"):
            # `os._exit` runs no function of `atexit`.
            outbox.close()
        teardown.flush()
        # Without a supervisor there is nobody to wait for.
        with contextlib.suppress(OSError, EOFError, WireError):
            # The report must get out, also when the supervisor's end closes a moment later.
            self._die_with_supervisor(False)
            self._wire.send(message)
            self._wire.wait()
        _really_exit(code)

    def exit_hook(self, status: int) -> NoReturn:
        """Replace `os._exit`, to report the frames that call it: they are gone once the process exits."""
        # A forked child, for example a data loader's worker, ends without a report. So does exit code 0, which is no
        # failure.
        if status and os.getpid() == self._pid:
            self.leave(status, None, sys._getframe(1))
        _really_exit(status)

    def _die_with_supervisor(self, wanted: bool) -> None:
        """Have the kernel kill this process when the supervisor's end of the lifeline closes.

        A kernel without F_SETSIG (macOS) cannot: there a rank may outlive a supervisor that was killed.
        """
        # O_ASYNC sends a signal when a descriptor becomes readable, and F_SETSIG makes that SIGKILL. Nothing is ever
        # written into the lifeline, so only its end makes it readable. The link would not do: the kernel wakes a
        # reader before it looks for O_ASYNC, so a rank that is fast would be killed by its own start message.
        if not hasattr(fcntl, "F_SETSIG"):
            return
        fcntl.fcntl(self._lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(self._lifeline, fcntl.F_GETFL) & ~os.O_ASYNC
        fcntl.fcntl(self._lifeline, fcntl.F_SETFL, flags | (os.O_ASYNC if wanted else 0))

    def _frames(self, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keep the frames in the user's code, with their files relative to it; all frames if none is there."""
        own = []
        for frame in frames:
            file = os.path.realpath(frame["file"])  # noqa: PTH
            if file.startswith(self._code + os.sep):
                own.append({**frame, "file": file[len(self._code) + 1 :]})
        return (own or frames)[-_MAX_FRAMES:]


def _pass_on(secrets: dict[str, str], *, inheritable: bool) -> None:
    # In a function of its own: the user's program can read the variables of the frames below it.
    os.environ.update({name: _descriptor_of(secret, inheritable=inheritable) for name, secret in secrets.items()})


def _descriptor_of(secret: str, *, inheritable: bool) -> str:
    """Return a path that gives the secret once: every child gets a copy of the environment, and many print it.

    A program that this process starts reads the secret itself; its descriptor must then be `inheritable`.
    """
    reader, writer = os.pipe()
    os.write(writer, secret.encode())
    os.close(writer)
    os.set_inheritable(reader, inheritable)
    return f"/dev/fd/{reader}"


def _run_python(message: Message) -> None:
    sys.argv = [message["program"], *message["arguments"]]
    # As `python script.py` does. PYTHONSAFEPATH leaves out the script's own folder.
    sys.path[:0] = message["first_paths"] if not getattr(sys.flags, "safe_path", False) else [message["code"]]
    sys.path.extend(path for path in message["last_paths"] if path not in sys.path)
    if message["entry"] == "module":
        import runpy

        runpy.run_module(message["program"], run_name="__main__", alter_sys=True)
        return
    path = message["program"]
    main_module = ModuleType("__main__")
    main_module.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None, __spec__=None)
    # Classes of the script are pickled by the name of this module, and multiprocessing's spawn reads its __file__.
    sys.modules["__main__"] = main_module
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib again
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main_module.__dict__)  # noqa: S102 - running the user's script is the purpose


def _run_program(message: Message) -> int:
    """Run a shell script or any executable as a child, pass SIGTERM on, return its exit code."""
    import subprocess

    command = [message["program"], *message["arguments"]]
    try:
        # Inherited descriptors stay: MPICH's ranks talk to their launcher over one.
        child = subprocess.Popen(command, close_fds=False)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # The file has no `#!` line; a shell runs such a file itself, and so do we.
        child = subprocess.Popen(["/bin/sh", *command], close_fds=False)
    # The program may save a checkpoint at SIGTERM, which only this process gets.
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    code = child.wait()
    return 128 - code if code < 0 else code


def _line_buffer() -> None:
    """Write each line as soon as it is printed; for a pipe, Python would wait until 8 KiB are full."""
    # A `sitecustomize` may have replaced the streams by objects without this method.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)


def _code_of(error: SystemExit) -> int:
    """Turn the argument of `sys.exit` into an exit code, and print a text as Python does."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Print the traceback as Python would have, without this file's frames."""
    error.__traceback__ = _without_ours(error.__traceback__)
    _cut_library(error)
    # The script, or a library that it imports, may have replaced it: torch.distributed puts the rank before each line.
    sys.excepthook(type(error), error, error.__traceback__)


def _excepthook(code: str) -> Callable[..., None]:
    """Return Python's excepthook, with the user's own names of files.

    Files of the job's copy of the code, `code`, are named relative to it, as they are named relative to `source_dir`.
    """

    def hook(*error: Any) -> None:
        # Python itself formats it: the script may have a module `traceback` of its own.
        stream, sys.stderr = sys.stderr, io.StringIO()
        try:
            sys.__excepthook__(*error)
        finally:
            text, sys.stderr = sys.stderr.getvalue(), stream
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.write(text.replace(f'  File "{code}/', '  File "'))

    return hook


def _cut_library(error: BaseException) -> None:
    """End the traceback of an error that our library raises on purpose at the line that called the library."""
    if type(error).__module__ != "herringbone_contract.errors":
        return
    last, trace = None, error.__traceback__
    while trace is not None:
        if "/herringbone_parallel/" not in trace.tb_frame.f_code.co_filename:
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def _frames_of(error: BaseException) -> list[dict[str, Any]]:
    frames = []
    trace = _without_ours(error.__traceback__)
    while trace is not None:
        frames.append(_frame(trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        source = (error.text or "").strip()
        frames.append({"file": error.filename, "line": error.lineno or 0, "function": "<module>", "source": source})
    return frames


def _stack_of(frame: FrameType | None) -> list[dict[str, Any]]:
    frames = []
    while frame is not None and frame.f_code.co_filename not in (__file__, "<frozen runpy>"):
        frames.append(_frame(frame, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]


def _frame(frame: FrameType, line: int) -> dict[str, Any]:
    code = frame.f_code
    source = _source(code.co_filename, line)
    return {"file": code.co_filename, "line": line, "function": code.co_name, "source": source}


def _source(file: str, line: int) -> str:
    # Python's own module, before one of that name in the user's code.
    folder = os.path.dirname(os.__file__)  # noqa: PTH120
    sys.path.insert(0, folder)
    try:
        import linecache

        return linecache.getline(file, line).strip()
    # The script may have imported its own.
    except Exception:  # noqa: BLE001
        return ""
    finally:
        sys.path.remove(folder)


def _flight_record() -> dict[str, Any]:
    """Return this rank's last collective operations: the error may be that of another rank."""
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return {}
    try:
        from herringbone_entry.ranks.recorder import flight_record
    except ImportError:  # the package was removed while the job ran
        return {}
    return flight_record.dump(failed=True)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_MESSAGE_CHARS]
    except Exception:  # noqa: BLE001 - a user's __str__ may itself be broken
        return "(its text cannot be shown)"
