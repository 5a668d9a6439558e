"""A connection to a machine's agent: a local process whose standard input and output lead to the machine.

    client                          ssh, or any program that runs `loader_command` on the machine
                    <-------------  the loader's greeting: login files may print, or take a while, before it
    Connection.send ------------->  standard input   -> loader -> bootstrap -> agent
    Connection.messages <---------  standard output  <- agent
    _why_closed <-----------------  standard error   <- ssh and the machine's shell

One thread at a time uses a connection: `_ready`, `_held_back` and the unpacker have no lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

from herringbone.backends.ssh.agent.messages import Message, ProtocolError, Unpacker, pack
from herringbone.images.wheel import pack_herringbone
from herringbone_contract.errors import HostError
from herringbone_contract.masking import printable

ANSWER_SECONDS = 60.0
# The first answer may have to wait for the environment, for which pip may download packages.
FIRST_ANSWER_SECONDS = 600.0
_READ_BYTES = 1 << 20
_CLOSE_SECONDS = 2.0
# Login files that load modules take seconds.
GREETING_SECONDS = 60.0
_GREETING = b"<herringbone>"
# Kept of what login files print.
_NOISE_BYTES = 65_536
_SHOWN_CHARS = 100
# Greets, then reads eight digits and that many bytes of program text, and runs the text. It contains no single quote
# and no `$`, so every shell passes it on unchanged between single quotes.
_LOADER = (
    'import os;r=os.read;os.write(1,b"<herringbone>");n=int(r(0,8)or exit(9));t=b"";'
    'exec("while len(t)<n:t+=r(0,n-len(t))or exit(9)");exec(t)'
)
_LOGIN_FILES = (
    "does a login file of that machine (.bashrc, .profile, .cshrc) leave, start another shell, read input, redirect it "
    "(`exec </dev/null`) or end itself? Let it do so on terminals only, as with `[ -t 0 ] || return` at its top"
)
_SSH_SETTINGS = (
    "; or do settings for it in your ssh configuration (SessionType, StdinNull) keep ssh from running programs?"
)
# All of a traceback of Python, except its last line.
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n)*", re.MULTILINE)
# ssh's own code for a connection that failed, and the shell's for a program that it does not find.
_SSH_FAILED, _COMMAND_NOT_FOUND = 255, 127


def loader_command(python: str) -> str:
    """Return the command line to run on a machine; `python` is a name or a path without shell characters.

    >>> loader_command("python3").partition("import")[0]
    "python3 -I -c '"
    """
    # -I: neither PYTHONPATH nor files in the login folder can replace modules of the standard library.
    return f"{python} -I -c '{_LOADER}'"


class Wheel:
    """The running Herringbone as a wheel, packed once, for the first connection that needs its digest."""

    @cached_property
    def content(self) -> bytes:
        """Return the bytes of the wheel."""
        return pack_herringbone()[1]

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the wheel, by which a machine knows whether it has an environment for it."""
        return hashlib.sha256(self.content).hexdigest()


Explain = Callable[[int, str], str]


class Connection:
    """Sends requests to a machine's agent and receives its messages.

    >>> with Connection("gpu-1", ["ssh", "--", "gpu-1", loader_command("python3")], work="~/work", wheel=Wheel()) as c:
    ...     c.ask({"ask": "facts"})["machine"]                                          # doctest: +SKIP

    `explain` turns the exit code and the standard error of the local process into a reason. All methods raise
    `HostError` when the machine does not answer.
    """

    def __init__(
        self,
        machine: str,
        command: Sequence[str],
        *,
        work: str,
        wheel: Wheel,
        explain: Explain | None = None,
        greeting_seconds: float = GREETING_SECONDS,
    ) -> None:
        self.machine = machine
        self._wheel = wheel
        self._explain = explain or _explain_plainly
        self._unpacker = Unpacker()
        self._numbers = itertools.count(1)
        # Messages that arrived while `wait_for` waited for another one.
        self._ready: list[tuple[Message, bytes]] = []
        # Requests until the agent is ready, None from then on: the bootstrap would take them for its own input.
        self._held_back: list[bytes] | None = []
        # A file and not a pipe: a ControlMaster that ssh leaves in the background keeps standard error open, and a
        # pipe would then have no end.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                # The terminal sends Ctrl-C to its foreground group. ssh must survive it, to carry the request to stop.
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise HostError(f"{machine}: {command[0]} cannot be started: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out, self._in = self._process.stdout.fileno(), self._process.stdin
        # One thread follows many machines, so reading from one must never block.
        os.set_blocking(self._out, False)
        bootstrap = (Path(__file__).parents[1] / "agent" / "bootstrap.py").read_bytes()
        # Sent after the loader's greeting, None from then on: a login file, or another shell, would read it.
        self._program: bytes | None = b"%8d" % len(bootstrap) + bootstrap + f"{work}\n{wheel.digest}\n".encode()
        self._greeting_seconds = greeting_seconds
        self._greeted_by = time.monotonic() + greeting_seconds
        self._noise = b""
        # Something came after the greeting: the bootstrap runs.
        self._has_answered = False

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Message, payload: bytes = b"") -> int:
        """Send a request without waiting; return the request's number, which its answer contains."""
        # A member of this name would be lost without a word.
        assert "number" not in message, message["ask"]
        number = next(self._numbers)
        request = pack({**message, "number": number}, payload)
        if self._held_back is None:
            self._write(request)
        else:
            self._held_back.append(request)
        return number

    def ask(self, message: Message, payload: bytes = b"", *, timeout: float | None = None) -> Message:
        """Send a request and return its answer. Raises `HostError` for a refusal, too."""
        return self.answer_to(self.send(message, payload), timeout=timeout)

    def answer_to(self, number: int, *, timeout: float | None = None) -> Message:
        """Wait for the answer to the request `number`. Raises `HostError` for a refusal, too."""
        answer = self.wait_for("answer", number, timeout=timeout)
        if "refused" in answer:
            raise HostError(f"{self.machine}: {answer['refused']}")
        return answer

    def wait_for(self, key: str, number: int, *, timeout: float | None = None) -> Message:
        """Wait for the message with `number` under `key`; messages that come before it stay for `messages`."""
        limit = timeout or (ANSWER_SECONDS if self._held_back is None else FIRST_ANSWER_SECONDS)
        deadline = time.monotonic() + limit
        earlier: list[tuple[Message, bytes]] = []
        while True:
            arrived = self.messages()
            for position, (message, _) in enumerate(arrived):
                if message.get(key) == number:
                    # Rows and log bytes must keep their order for whoever follows the job on this connection.
                    self._ready = [*earlier, *arrived[:position], *arrived[position + 1 :]]
                    return message
            earlier += arrived
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise HostError(f"{self.machine}: no answer within {limit:g} s")
            self._wait(remaining if self._program is None else min(remaining, self._greeted_by - time.monotonic()))

    def messages(self) -> list[tuple[Message, bytes]]:
        """Return the messages that have arrived, without waiting. Raises `HostError` once the connection is closed."""
        arrived, self._ready = self._ready, []
        while True:
            try:
                chunk = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                if self._program is not None and time.monotonic() > self._greeted_by:
                    why = f"its Python did not start within {self._greeting_seconds:g} s"
                    noise = printable(" ".join(self._noise.decode(errors="replace").split()))
                    printed = f" (it printed {noise[-_SHOWN_CHARS:]!r})" if noise else ""
                    raise HostError(f"{self.machine}: {why}{printed}: {_LOGIN_FILES}{_SSH_SETTINGS}") from None
                return arrived
            if not chunk:
                if arrived:
                    # Deliver these first; the next call reads the end of the stream again and raises.
                    return arrived
                raise HostError(f"{self.machine}: {self._why_closed()}")
            if self._program is not None:
                chunk = self._after_greeting(chunk)
            self._has_answered |= bool(chunk)
            try:
                received = self._unpacker.feed(chunk)
            except ProtocolError as error:
                raise HostError(
                    f"{self.machine}: a program other than Herringbone answers ({error}); does a login file of that "
                    "machine print something? Let it print on terminals only"
                ) from None
            arrived += [pair for pair in received if not self._handle(pair[0])]

    def disconnect(self) -> None:
        """Start to close the connection, without waiting."""
        # The agent ends when it reads the end of its input.
        with contextlib.suppress(OSError):
            self._in.close()

    def close(self, *, gracefully: bool = True) -> None:
        """Close the connection; hosts that the agent started run on.

        Gracefully means to wait for the agent's end, which is pointless when the machine is lost.
        """
        self.disconnect()
        try:
            self._process.wait(_CLOSE_SECONDS if gracefully else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A killed process stays a zombie until it is waited for.
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def __del__(self) -> None:
        # A caller that asks for a job's state once never closes the monitor's connections.
        with contextlib.suppress(Exception):
            self.close()

    def _after_greeting(self, chunk: bytes) -> bytes:
        """Return what follows the loader's greeting, and send the program once the loader has greeted."""
        noise, greeting, rest = (self._noise + chunk).partition(_GREETING)
        if not greeting:
            self._noise = noise[-_NOISE_BYTES:]
            return b""
        assert self._program is not None
        program, self._program = self._program, None
        self._write(program)
        return rest

    def _handle(self, message: Message) -> bool:
        """Handle a message that concerns the connection itself; return whether it was one."""
        if "failed" in message:
            raise HostError(f"{self.machine}: {message['failed']}")
        if message.get("send") == "wheel":
            self._write(b"%d\n" % len(self._wheel.content) + self._wheel.content)
            return True
        if "ready" in message and self._held_back is not None:
            # None first: from now on `send` writes directly, behind these requests.
            held_back, self._held_back = self._held_back, None
            for request in held_back:
                self._write(request)
            return True
        return False

    def _write(self, data: bytes) -> None:
        # A broken pipe is no error here: the end of the output follows, and `_why_closed` then has the reason.
        with contextlib.suppress(OSError):
            self._in.write(data)
            self._in.flush()

    def _wait(self, seconds: float) -> None:
        # A selector and not `select.select`, which fails for descriptors above 1023.
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            selector.select(seconds)

    def _why_closed(self) -> str:
        try:
            code = self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            code = _SSH_FAILED
        # The child wrote through a duplicate of this descriptor, which shares the position in the file.
        self._errors.seek(0)
        errors = _TRACEBACK.sub("", self._errors.read().decode(errors="replace")).strip()
        reason = self._explain(code, errors)
        # ssh has lines of its own about a connection that fails. Without one, something ended the login.
        is_cut = code == _SSH_FAILED and bool(errors or self._program is None)
        if self._has_answered or is_cut or code == _COMMAND_NOT_FOUND:
            return reason
        when = "its Python ran" if self._program is not None else "its Python got a program"
        return f"it ended before {when}: {_LOGIN_FILES}{'' if code else _SSH_SETTINGS} ({reason})"


def _explain_plainly(code: int, errors: str) -> str:
    return f"the connection is closed (exit code {code}){': ' if errors else ''}{errors}"
