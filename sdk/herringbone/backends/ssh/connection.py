"""One visit to a machine, from this side: a process whose standard input and output lead there.

What leads there is somebody else's business: ssh, or anything that runs `REMOTE_WORDS` over there.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

from herringbone.backends.ssh.agent.messages import Message, Unpacker, WireError, pack
from herringbone.images.wheel import pack_herringbone
from herringbone_contract.errors import HostError

ANSWER_SECONDS = 60.0
# Making an environment may ask a package index, and unpack.
FIRST_ANSWER_SECONDS = 600.0
_READ_BYTES = 1 << 20
_GOODBYE_SECONDS = 2.0
# Reads eight digits and as many bytes, and runs them. No quote of its own kind, no $: any shell passes it on.
_LOADER = 'import os;r=os.read;n=int(r(0,8));t=b"";exec("while len(t)<n:t+=r(0,n-len(t))or exit(9)");exec(t)'


def remote_words(python: str) -> str:
    """Return the command line to run on a machine; `python` is a program's name or path, without a shell's characters.

    >>> remote_words("python3").partition("import")[0]
    "python3 -I -c '"
    """
    return f"{python} -I -c '{_LOADER}'"


class Wheel:
    """The Herringbone that runs here, as it will run there."""

    @cached_property
    def content(self) -> bytes:
        return pack_herringbone()[1]

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


Explain = Callable[[int, str], str]


class Visit:
    """A machine's desk, asked and heard.

    >>> with Visit("gpu-1", ["ssh", "--", "gpu-1", remote_words("python3")], work="~/work", wheel=Wheel()) as visit:
    ...     visit.ask({"ask": "hello"})["machine"]                                          # doctest: +SKIP

    `explain` says in words why the process ended that leads there, from its exit code and its standard error. Raises
    `HostError` wherever the machine does not answer.
    """

    def __init__(
        self, machine: str, command: Sequence[str], *, work: str, wheel: Wheel, explain: Explain | None = None
    ) -> None:
        self.machine = machine
        self._wheel = wheel
        self._explain = explain or _plain
        self._unpacker = Unpacker()
        self._numbers = itertools.count(1)
        self._ready: list[tuple[Message, bytes]] = []
        # What is sent before the desk is there would be taken for an answer to what the front asks.
        self._waiting: list[bytes] | None = []
        # A file: what it starts in the background may hold its standard error open for long.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the visit
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                # Ctrl-C is for us to hear: a job that is being asked to stop needs its visits.
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise HostError(f"{machine}: {command[0]} cannot be started: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._out, self._in = self._process.stdout.fileno(), self._process.stdin
        os.set_blocking(self._out, False)
        program = (Path(__file__).parent / "agent" / "bootstrap.py").read_bytes()
        self._write(b"%8d" % len(program) + program + f"{work}\n{wheel.digest}\n".encode())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: Message, payload: bytes = b"") -> int:
        """Send a request without waiting; return the number by which its answer names it."""
        number = next(self._numbers)
        request = pack({**message, "number": number}, payload)
        if self._waiting is None:
            self._write(request)
        else:
            self._waiting.append(request)
        return number

    def ask(self, message: Message, payload: bytes = b"", *, timeout: float | None = None) -> Message:
        """Send a request and return the answer. Raises `HostError` for a refusal, too."""
        return self.answer_to(self.send(message, payload), timeout=timeout)

    def answer_to(self, number: int, *, timeout: float | None = None) -> Message:
        """Wait for the answer to a request that was sent. Raises `HostError` for a refusal, too."""
        answer = self.hear("answer", number, timeout=timeout)
        if "refused" in answer:
            raise HostError(f"{self.machine}: {answer['refused']}")
        return answer

    def hear(self, kind: str, number: int, *, timeout: float | None = None) -> Message:
        """Wait for what is said under a key about the request of that number; what comes before it is kept."""
        limit = timeout or (ANSWER_SECONDS if self._waiting is None else FIRST_ANSWER_SECONDS)
        deadline = time.monotonic() + limit
        earlier: list[tuple[Message, bytes]] = []
        while True:
            found = self.messages()
            for place, (message, _) in enumerate(found):
                if message.get(kind) == number:
                    self._ready = [*earlier, *found[:place], *found[place + 1 :]]
                    return message
            earlier += found
            left = deadline - time.monotonic()
            if left <= 0:
                raise HostError(f"{self.machine}: no answer within {limit:g} s")
            self._wait(left)

    def messages(self) -> list[tuple[Message, bytes]]:
        """Return what has come, without waiting. Raises `HostError` once the visit is over."""
        found, self._ready = self._ready, []
        while True:
            try:
                chunk = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                return found
            if not chunk:
                if found:
                    return found  # and at the next call, the end
                raise HostError(f"{self.machine}: {self._why_over()}")
            try:
                taken = self._unpacker.feed(chunk)
            except WireError as error:
                raise HostError(
                    f"{self.machine}: something else than Herringbone answers ({error}); does a login file of that "
                    "machine print something? Let it do so for terminals only"
                ) from None
            found += [each for each in taken if not self._serve(each[0])]

    def hang_up(self) -> None:
        """Begin to end the visit, without waiting."""
        with contextlib.suppress(OSError):
            self._in.close()

    def close(self, *, patiently: bool = True) -> None:
        """End the visit; what it started over there goes on. Impatiently where nobody is there to say goodbye."""
        self.hang_up()
        try:
            self._process.wait(_GOODBYE_SECONDS if patiently else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def __del__(self) -> None:
        # Of who asked for a job's state once, and never followed it.
        with contextlib.suppress(Exception):
            self.close()

    def _serve(self, message: Message) -> bool:
        """Take what is for us and not for who asked; say whether it was."""
        if "failed" in message:
            raise HostError(f"{self.machine}: {message['failed']}")
        if message.get("send") == "wheel":
            self._write(b"%d\n" % len(self._wheel.content) + self._wheel.content)
            return True
        if "ready" in message and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            for request in waiting:
                self._write(request)
            return True
        return False

    def _write(self, data: bytes) -> None:
        try:
            self._in.write(data)
            self._in.flush()
        except OSError:
            pass  # why it is over shows when its output ends

    def _wait(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            selector.select(seconds)

    def _why_over(self) -> str:
        try:
            code = self._process.wait(_GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            code = 255
        self._errors.seek(0)
        return self._explain(code, self._errors.read().decode(errors="replace").strip())


def _plain(code: int, errors: str) -> str:
    return f"the connection is over (exit code {code}){': ' if errors else ''}{errors}"
