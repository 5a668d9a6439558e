"""The keeper of one job on one machine: votes, holds the lease, and lets the holder start hosts here.

    this thread             every pulse: asks of the lease, the permit, what has ended, what others should know
    a thread a machine      carries asks to that machine's keeper, and its answers back
    a thread a connection   answers a machine: its asks; or, for the holder that this machine votes for, an agent's
                            verbs, and files of the job
    a thread of a holder    runs the client's part (`holder`) while this machine holds the lease

`_lock` guards the member and what belongs to it; nothing waits for another machine with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from threading import Event, Lock, Thread
from typing import Any

import msgspec

from herringbone.backends.ssh.agent.jobs import MachineJobs
from herringbone.backends.ssh.agent.keeping import ATTEMPTS, OBSERVED, STOPPING
from herringbone.backends.ssh.agent.line import MachineLine
from herringbone.backends.ssh.agent.messages import Message, Unpacker, pack
from herringbone.backends.ssh.agent.process_host import permit_file
from herringbone.backends.ssh.attempts.current import split_attempt
from herringbone.backends.ssh.attempts.lease import PULSES, STOP, TAKE_OVER, Answer, Ask, Entry, Member, is_quorum
from herringbone.backends.ssh.keepers.gate import KeeperConfig, check_request, complete_start, is_of_job
from herringbone.backends.ssh.keepers.sealed import PIECE_BYTES, Sealed, accept, connect
from herringbone.backends.ssh.keepers.transport import LOST
from herringbone.backends.ssh.keepers.trees import receive_tree, send_tree
from herringbone.controller.permit import lasting_clock, write_permit
from herringbone.plan.plan import parse_plan
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.system.processes import identity, pid_of
from herringbone_contract.errors import HerringboneError, HostError
from herringbone_contract.files import write_whole

# Connections of strangers that have not proved themselves, at a time.
_MAX_UNPROVEN = 64
# The job's own end is the controllers' matter; a keeper stays this much longer for machines that have not heard of it.
_LATER_SECONDS = 600.0
_PATIENCE_SECONDS = 5.0


class Keeper:
    """Keeps one job: `Keeper(home, config, listener, decide).run()`; `home` is the work folder.

    `decide` gets the keeper and the term of a lease that this machine holds, in a thread of its own. `began` is when
    the keeper started, by `lasting_clock`.
    """

    def __init__(
        self, home: Home, config: KeeperConfig, listener: socket.socket, decide: Callable[[Keeper, int], None]
    ) -> None:
        self.home, self.config, self._listener, self._decide = home, config, listener, decide
        self._folder = home.job(config.job).path
        self._jobs = MachineJobs(home, MachineLine(home))
        self._lock, self._woken = Lock(), Event()
        self.began = lasting_clock()
        self._member = Member(
            config.machine,
            list(config.machines),
            seconds=config.seconds,
            value={"attempt": config.attempt},
            now=self.began,
        )
        self._max_run = parse_plan(config.base.plan).options.max_run
        # Attempts that a holder starts here, and those of them whose rows say more from now on.
        self._starting: list[int] = []
        self._settled: list[int] = []
        # Since when a machine has had no keeper, by its name: keepers never come back.
        self._gone: dict[str, float] = {}
        # A holder has to say some more times that the end counts.
        self._leaves_at = 0.0
        self._outgoing: dict[str, queue.SimpleQueue[Ask]] = {
            name: queue.SimpleQueue() for name in config.machines if name != config.machine
        }
        self._published: tuple[int, int] | None = None
        self._deciding: Thread | None = None
        self._unproven: dict[socket.socket, None] = {}

    def run(self) -> None:
        """Keep the job until it is over and all machines know, or its time is over."""
        Thread(target=self._accept, daemon=True).start()
        for name in self._outgoing:
            Thread(target=self._ask_machine, args=(name,), daemon=True).start()
        while not self._is_over():
            try:
                self._pulse()
            except (HerringboneError, OSError) as error:
                # The index is busy, or the disk full. Permits that are not written end.
                complain(error)
            self._woken.wait(self.config.seconds / PULSES)
            self._woken.clear()

    def wake(self) -> None:
        """Have the next pulse now: what others wait for should not take one."""
        self._woken.set()

    def _pulse(self) -> None:
        self._look()
        with self._lock:
            now = lasting_clock()
            asks = self._member.asks(now)
            leads = self._member.holds(now) and self._member.is_recorded
            term = self._member.term
        for name, ask in asks.items():
            self._outgoing[name].put(ask)
        if leads and (self._deciding is None or not self._deciding.is_alive()):
            self._deciding = Thread(target=self._decide, args=(self, term), daemon=True)
            self._deciding.start()

    @contextlib.contextmanager
    def member(self) -> Iterator[Member]:
        """Hold the lock and yield the member."""
        with self._lock:
            yield self._member

    @contextlib.contextmanager
    def held(self, term: int) -> Iterator[Member]:
        """Hold the lock and yield the member. Raises `HostError` where the lease of `term` is not this machine's."""
        with self._lock:
            if self._member.term != term or not self._member.holds(lasting_clock()):
                raise HostError(f"{self.config.machine} no longer decides about {self.config.job}")
            yield self._member

    @property
    def _patience(self) -> float:
        """The seconds for which a connection lasts when nothing is heard: two tries at one machine fit into a lease."""
        return min(self.config.seconds / 2, _PATIENCE_SECONDS)

    def open(self, machine: str, hello: Message) -> Sealed:
        """Open a connection to a machine's keeper. Raises `HostError`."""
        address, port = self.config.addresses[machine]
        key, patience = self.config.key.encode(), self._patience
        try:
            sealed = connect((address, port), key, me=self.config.machine, peer=machine, patience=patience)
            sealed.send_message(hello)
        except LOST as error:
            raise HostError(f"{machine}: its keeper does not answer: {error}") from error
        return sealed

    def _is_over(self) -> bool:
        """Report whether this keeper has nothing left to do: all know of the end, or no majority can come back."""
        with self._lock:
            member, now = self._member, lasting_clock()
            is_known = "over" in member.committed.value
            if not is_known or (member.term and member.has_entry != set(member.members)):
                self._leaves_at = now + (member.seconds / 2 if member.term else 0.0)
            gone = {name for name, since in self._gone.items() if now > since + member.seconds / 2}
            is_last = not member.runs and not is_quorum(member.members, set(member.members) - gone)
        # A job that was forgotten has no folder.
        return (
            (is_known and now >= self._leaves_at)
            or is_last
            or now > self.began + self._max_run + _LATER_SECONDS
            or not self._folder.exists()
        )

    # What happens here

    def _look(self) -> None:
        """See which attempts run here, end older ones, and write the permit and what the machines agree on."""
        settled, running = list(self._settled), []
        for row in JobIndex(self.home.index).all():
            # `describe` also notices a controller that was killed.
            is_ours = split_attempt(row.name)[0] == self.config.job and not row.done
            if is_ours and not (record := self._jobs.describe(row.name)).done:
                running.append(record)
        with self._lock:
            member = self._member
            for number in settled:
                self._settled.remove(number)
                self._starting.remove(number)
            numbers = [split_attempt(record.name)[1] for record in running]
            member.runs = min([*self._starting, *numbers], default=0)
            member.wish = self._wish()
            permit, committed, newest = member.permit, member.committed, member.entry.attempt
        with contextlib.suppress(FileNotFoundError):
            write_permit(str(permit_file(self._folder)), permit)
            if committed.key != self._published:
                self._publish(committed)
        # A controller that stands still looks at no permit.
        is_late = lasting_clock() > permit + self.config.margin / 3
        for record, number in zip(running, numbers, strict=True):
            if (number < newest or is_late) and record.controller is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid_of(record.controller), signal.SIGKILL)

    def _wish(self) -> str:
        """Return what clients have asked this machine for."""
        if (self._folder / STOPPING).exists():
            return STOP
        with contextlib.suppress(OSError):
            # A client that has gone since then cannot take over.
            if time.time() < (self._folder / OBSERVED).stat().st_mtime + self.config.seconds:
                return TAKE_OVER
        return ""

    def _publish(self, committed: Entry) -> None:
        """Write the newest entry that counts, for clients."""
        state = {
            "keeper": str(identity(os.getpid())),
            "number": committed.attempt,
            "order": list(committed.key),
            "value": committed.value,
            "wait": self.config.seconds + self.config.margin,
        }
        write_whole(self._folder / ATTEMPTS, json.dumps(state).encode())
        self._published = committed.key

    # Other machines

    def _ask_machine(self, name: str) -> None:
        sealed: Sealed | None = None
        while True:
            ask = self._outgoing[name].get()
            # A machine that was silent gets the newest ask alone.
            while not self._outgoing[name].empty():
                ask = self._outgoing[name].get()
            try:
                if sealed is None:
                    sealed = self.open(name, {"kind": "asks"})
                    sealed.wait_at_most(self.config.seconds / 2)
                sent = lasting_clock()
                sealed.send_message(msgspec.to_builtins(ask))
                answer = msgspec.convert(sealed.receive_message(), Answer)
                with self._lock:
                    stage = self._member.stage
                    self._member.take(name, ask, answer, sent=sent, now=lasting_clock())
                    if self._member.stage != stage:
                        self.wake()
                self._gone.pop(name, None)
            except (*LOST, HostError) as error:
                if sealed is not None:
                    sealed.close()
                sealed = None
                if isinstance(error.__cause__, ConnectionRefusedError):
                    self._gone.setdefault(name, lasting_clock())
                else:
                    self._gone.pop(name, None)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # No room for another connection now.
                time.sleep(0.1)
                continue
            if len(self._unproven) >= _MAX_UNPROVEN:
                # The oldest: a machine of the job proves itself at once.
                with contextlib.suppress(OSError, StopIteration):
                    next(iter(list(self._unproven))).shutdown(socket.SHUT_RDWR)
            self._unproven[connection] = None
            try:
                Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:
                # The user may have no further thread.
                self._unproven.pop(connection)
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        sealed: Sealed | None = None
        # Whatever a peer sends ends its own connection alone.
        try:
            key, patience = self.config.key.encode(), self._patience
            peer, sealed = accept(connection, key, me=self.config.machine, patience=patience)
            self._unproven.pop(connection, None)
            hello = sealed.receive_message()
            if hello["kind"] == "asks" and peer != self.config.machine:
                self._answer_asks(peer, sealed)
            self._check_holder(peer, hello["term"])
            if hello["kind"] == "agent":
                self._serve_agent(peer, hello["term"], sealed)
            elif hello["kind"] == "give":
                base, inside = self._inside_job(hello["path"])
                sealed.send_message({"root": str(base / inside)})
                send_tree(base, inside, sealed)
            elif hello["kind"] == "take":
                receive_tree(sealed, self._upload(hello["path"]), root="/", shown="files")
                sealed.send_message({})
        except (*LOST, KeyError, TypeError, HerringboneError, msgspec.ValidationError, RecursionError):
            pass
        finally:
            self._unproven.pop(connection, None)
            (connection if sealed is None else sealed).close()

    def _answer_asks(self, peer: str, sealed: Sealed) -> None:
        while True:
            ask = msgspec.convert(sealed.receive_message(), Ask)
            if ask.candidate != peer:
                raise HostError(f"{peer} asks as {ask.candidate}")
            with self._lock:
                answer = self._member.hear(ask, lasting_clock())
            if 0 < answer.runs < answer.entry.attempt:
                # The holder waits for the end of what runs here.
                self.wake()
            sealed.send_message(msgspec.to_builtins(answer))

    def _check_holder(self, peer: str, term: Any) -> None:
        with self._lock:
            if not self._member.follows(peer, term):
                raise HostError(f"{self.config.machine} follows another machine than {peer}")

    def _inside_job(self, path: str) -> tuple[Path, str]:
        """Return the folder of a job's attempt here, and a folder below it. Raises `HostError`."""
        parts = PurePosixPath(path.removeprefix(f"{self.home.path}/")).parts
        if len(parts) < 2 or parts[0] != "jobs" or ".." in parts or not is_of_job(parts[1], self.config.job):
            raise HostError(f"{path} is no folder of {self.config.job}")
        name, *inside = parts[1:]
        return self.home.job(name).path, "/".join(inside)

    def _upload(self, path: str) -> Path:
        """Return the folder of an upload, which a request `missing` has made. Raises `HostError`."""
        folder = Path(path)
        if folder.parent != self.home.path / "data" or not (folder.name[0], folder.suffix) == (".", ".partial"):
            raise HostError(f"{path} is no upload")
        return folder

    def _serve_agent(self, peer: str, term: int, sealed: Sealed) -> None:
        """Run an agent for a holder, as ssh does for a client; each request is checked when it arrives."""
        command = [sys.executable, "-m", "herringbone.backends.ssh.agent", str(self.home.path)]
        started: list[int] = []
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            Thread(target=_carry, args=(agent.stdout.fileno(), sealed), daemon=True).start()
            unpacker = Unpacker()
            try:
                while True:
                    for message, payload in unpacker.feed(sealed.receive()):
                        self._check_holder(peer, term)
                        try:
                            if message.get("ask") == "start":
                                started.append(self._begin(peer, term, message))
                                host = complete_start(message["config"], self.config)
                                message = {**message, "config": msgspec.to_builtins(host)}
                            else:
                                check_request(message, self.config.job)
                        except (HerringboneError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
                            why = {"refused": str(error), "kind": "HostError"}
                            sealed.send(pack({"answer": message.get("number"), **why}))
                            continue
                        agent.stdin.write(pack(message, payload))
                        agent.stdin.flush()
            finally:
                with contextlib.suppress(OSError):
                    agent.stdin.close()
                agent.wait()
                # From now on their rows say whether they run.
                self._settled += started

    def _begin(self, peer: str, term: int, message: Message) -> int:
        """Note that an attempt starts here. Raises `HostError` where it must not."""
        number = split_attempt(str(message["config"]["name"]))[1]
        with self._lock:
            if not self._member.may_start(peer, term, number, lasting_clock()):
                raise HostError(f"{self.config.machine} may not start attempt {number}")
            self._starting.append(number)
            self._member.runs = number
        return number


def _carry(descriptor: int, sealed: Sealed) -> None:
    """Send what an agent writes, until it ends or the connection does."""
    with contextlib.suppress(*LOST):
        while chunk := os.read(descriptor, PIECE_BYTES):
            sealed.send(chunk)
    sealed.close()


def complain(error: Exception) -> None:
    """Write an error into the machine's log of keepers."""
    print(f"{time.strftime('%F %T')} {error}", file=sys.stderr, flush=True)
