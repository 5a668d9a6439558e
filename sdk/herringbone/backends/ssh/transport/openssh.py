"""The transport over the system's OpenSSH and rsync, with the user's keys, agents, jumps and known hosts.

Host keys are always checked: a machine that ssh does not know, or whose key has changed, is not connected to. ssh asks
no questions (`BatchMode`), and the user's `~/.ssh/config` applies. The first connection to a machine also carries later
ones for a while (`ControlMaster`).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.transport.connection import Connection, Wheel, loader_command
from herringbone.system.remote_line import PLAIN_SSH, remote_line
from herringbone_contract.errors import HostError

CONNECT_SECONDS = 10
# ssh asks the machine for an answer this often, and gives the connection up after three that did not come.
ALIVE_SECONDS = 5
# An unused shared connection stays open this long for the next one.
_PERSIST_SECONDS = 60
_ERROR_CHARS = 500
_LAST_CHARS = 300
_COMMAND_NOT_FOUND = 127
_SSH_FAILED = 255
# A program that a login file has started may hold the connection open for ever, so the machine reports the copy's end.
_ENDED = "<herringbone: rsync has ended>"
_REMOTE_RSYNC = shlex.join(["sh", "-c", f'rsync "$@" && echo "{_ENDED}" >&2', "sh"])
_HELD_SECONDS = 1.5
_CONNECT = r"^(?:ssh: connect to host|channel \d+: open failed:)"
# Lines of ssh itself, which end it with its own code -> reason and remedy. The first match is taken. A banner of the
# machine, or a login file, may have such words as well, but not such lines.
_MEANINGS = (
    (
        r"^@ +WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the known one, so nothing was sent; if the machine was installed again, "
        "`ssh-keygen -R {host}` forgets the old key",
    ),
    (
        r"^Host key verification failed",
        "its host key is not known here, so nothing was sent; log in once by hand (`{ssh}`) and compare the key",
    ),
    (
        r"^\S+: Permission denied \(",
        "it refuses the login of {who}; does `{ssh}` work without a question? If not, look at `user` and keys",
    ),
    (r"^ssh: Could not resolve hostname", "no such host: {host} has no address; look at `host` in the inventory"),
    (
        rf"{_CONNECT}.*Connection refused",
        "no program listens at {host}, port {port}; does sshd run there? Look at `port` in the inventory",
    ),
    (
        rf"{_CONNECT}.*timed out|^Connection timed out|^Timeout, server",
        "{host} does not answer; is the machine up, and the network?",
    ),
    (rf"{_CONNECT}.*No route to host", "there is no route to {host}; is the machine up, and the network?"),
    (rf"{_CONNECT}.*Network is unreachable", "there is no route to {host}; is this machine's network up?"),
)


class OpenSSHTransport:
    """Runs `ssh` and `rsync`; `control` is a private folder for shared connections, None for none.

    The folder's name must not contain a space, because rsync takes ssh's command line as one text.
    """

    def __init__(
        self, *, ssh: Sequence[str] = ("ssh",), rsync: Sequence[str] = ("rsync",), control: str | None = None
    ) -> None:
        self._ssh = tuple(ssh)
        self._rsync = tuple(rsync)
        self._control = control
        # One for all connections: packing reads all of Herringbone's files.
        self._wheel = Wheel()

    def connect(self, machine: Machine) -> Connection:
        # After `--` nothing is taken for an option, whatever the inventory contains.
        command = [*self._ssh_command(machine), "--", machine.destination, loader_command(machine.python)]
        return Connection(
            machine.name,
            command,
            work=machine.work_folder,
            wheel=self._wheel,
            explain=lambda code, errors: explain(machine, code, errors),
        )

    def words(self, machine: Machine, command: Sequence[str], *, terminal: bool) -> list[str]:
        return [*self._ssh_command(machine, terminal=terminal), "--", machine.destination, remote_line(command)]

    def port_words(self, machine: Machine, port: int) -> list[str]:
        # ssh itself joins standard input and output with the port; nothing runs on the machine.
        return [*self._ssh_command(machine), "-W", f"127.0.0.1:{port}", "--", machine.destination]

    def send(self, machine: Machine, local: Path, remote: str) -> None:
        # To rsync, a trailing slash means the content of the folder, not the folder itself.
        source = f"{local}/" if local.is_dir() else str(local)
        self._copy(machine, ["--copy-links"], source, f"{_bracketed(machine.destination)}:{remote}/")

    def fetch(self, machine: Machine, remote: str, local: Path, *, every_kind: bool = False) -> None:
        local.mkdir(parents=True, exist_ok=True)
        # --safe-links drops links that lead out of the folder, absolute ones too, and rsync reports none of them. rsync
        # itself follows no link below the folder that it fills.
        self._copy(
            machine,
            ["--specials"] if every_kind else ["--safe-links"],
            f"{_bracketed(machine.destination)}:{remote}/",
            f"{local}/",
        )

    def _copy(self, machine: Machine, kinds: Sequence[str], source: str, target: str) -> None:
        # -s keeps the paths from the machine's shell. No -o and -g: files belong to the user who receives them.
        command = [*self._rsync, "-s", "-rltp", *kinds, "--delete", "--delay-updates"]
        command += ["--timeout", str(ALIVE_SECONDS * 3 + CONNECT_SECONDS), "--rsync-path", _REMOTE_RSYNC]
        command += ["-e", " ".join(self._ssh_command(machine)), "--", source, target]
        with tempfile.TemporaryFile() as written:
            try:
                # The terminal's Ctrl-C stops the job, and must not break a copy of what the job left.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=written,
                    start_new_session=True,
                )
            except OSError as error:
                raise HostError(f"{self._rsync[0]} cannot be started: {error.strerror}; install rsync") from error
            code = _end_of(process, written)
            written.seek(0)
            errors = written.read().decode(errors="replace").replace(_ENDED, "").strip()[-_ERROR_CHARS:]
        if code:
            if "rsync: command not found" in errors or "rsync: not found" in errors:
                raise HostError(f"{machine.name}: it has no rsync; install it there")
            reason = explain(machine, code, errors)
            if "is your shell clean" in errors:
                reason = f"a login file of that machine prints something; let it print on terminals only ({reason})"
            elif re.search(r"^rsync: .*No space left on device", errors, re.MULTILINE):
                reason = f"its disk is full ({reason})"
            raise HostError(f"{machine.name}: {source} could not be copied to {target}: {reason}")

    def _ssh_command(self, machine: Machine, *, terminal: bool = False) -> list[str]:
        """Return ssh with all options that come before the destination."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(ALIVE_SECONDS),
            "ServerAliveCountMax": "3",
        }
        if self._control is not None:
            options |= {
                "ControlMaster": "auto",
                # %C is a hash: a socket's path is limited to about 100 bytes.
                "ControlPath": f"{self._control}/%C",
                "ControlPersist": str(_PERSIST_SECONDS),
            }
        # -T: a terminal would change the bytes that pass through it.
        command = [
            *self._ssh,
            "-tt" if terminal else "-T",
            *PLAIN_SSH,
            *(word for name, value in options.items() for word in ("-o", f"{name}={value}")),
        ]
        if machine.port is not None:
            command += ["-p", str(machine.port)]
        return command if machine.user is None else [*command, "-l", machine.user]


def _end_of(process: subprocess.Popen[bytes], errors: IO[bytes]) -> int:
    """Wait for rsync and return its exit code: 0 as well if only the connection is still held open."""
    try:
        while True:
            # Before the wait: the connection has the whole time to close.
            is_copied = _ENDED.encode() in os.pread(errors.fileno(), 1 << 20, 0)
            try:
                return process.wait(_HELD_SECONDS)
            except subprocess.TimeoutExpired:
                if is_copied:
                    return 0
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def control_folder() -> str | None:
    """Return a private folder for shared connections; None when there cannot be one."""
    path = Path(f"/tmp/herringbone-ssh-{os.getuid()}")  # noqa: S108 - checked below: ours, and closed to others
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        state = path.lstat()
    except OSError:
        return None
    # Another user may have made the folder, or a link, first; whoever can open its sockets can log in as the user.
    is_private = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077
    return str(path) if is_private else None


def explain(machine: Machine, code: int, errors: str) -> str:
    """Return the reason for which ssh ended, and a remedy, from its exit code and its standard error. Pure.

    >>> explain(Machine(name="gpu-1", port=2222), 255, "ssh: connect to host gpu-1: Connection refused").split(" (")[0]
    'no program listens at gpu-1, port 2222; does sshd run there? Look at `port` in the inventory'
    """
    excerpt = " ".join(errors.split())[-_LAST_CHARS:]
    for pattern, meaning in _MEANINGS:
        if code == _SSH_FAILED and re.search(pattern, errors, re.MULTILINE):
            return f"{_filled(meaning, machine)} ({excerpt})"
    # csh has no code of its own for a program that is not there.
    if code == _COMMAND_NOT_FOUND or errors.endswith(": Command not found."):
        return f"it has no {machine.python}; install Python 3.10 or newer there, or name one with `python` ({excerpt})"
    if not errors:
        return f"the connection broke (ssh ended with {code})"
    return excerpt


def _filled(meaning: str, machine: Machine) -> str:
    port = [] if machine.port is None else ["-p", str(machine.port)]
    user = [] if machine.user is None else ["-l", machine.user]
    return meaning.format(
        host=machine.destination,
        port=machine.port or 22,
        who=machine.user or "your user",
        ssh=" ".join(["ssh", *port, *user, machine.destination]),
    )


def _bracketed(destination: str) -> str:
    """Return an IPv6 address in the brackets that rsync expects; other destinations as they are.

    >>> _bracketed("fe80::1"), _bracketed("gpu-1")
    ('[fe80::1]', 'gpu-1')
    """
    return f"[{destination}]" if ":" in destination else destination
