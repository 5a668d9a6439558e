"""The way to machines by the system's OpenSSH and rsync: their keys, agents, jumps and known hosts are the user's own.

Host keys are never waived: a machine that ssh does not know, or whose key has changed, is not visited. No question is
put to anybody (`BatchMode`); what the user's `~/.ssh/config` says holds. The first connection to a machine serves all
that follow for a while (`ControlMaster`).
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from herringbone.backends.ssh.connection import Visit, Wheel, remote_words
from herringbone.backends.ssh.inventory import Machine
from herringbone.backends.ssh.ssh_errors import explain
from herringbone_contract.errors import HostError

CONNECT_SECONDS = 10
# An answer is asked for this often, and a machine that has missed three is gone.
ALIVE_SECONDS = 5
# How long a connection that nobody uses stays open for who comes next.
_PERSIST_SECONDS = 60
_ERROR_CHARS = 500


class SshRoad:
    """`ssh` and `rsync` are the programs; `control` is a private folder for connections that are shared, None for none.

    The folder's name has no space: rsync takes ssh's words as one text.
    """

    def __init__(
        self, *, ssh: Sequence[str] = ("ssh",), rsync: Sequence[str] = ("rsync",), control: str | None = None
    ) -> None:
        self._ssh = tuple(ssh)
        self._rsync = tuple(rsync)
        self._control = control
        self._wheel = Wheel()

    def visit(self, machine: Machine) -> Visit:
        command = [*self._words(machine), "--", machine.destination, remote_words(machine.python)]
        return Visit(
            machine.name,
            command,
            work=machine.work_folder,
            wheel=self._wheel,
            explain=lambda code, errors: explain(machine, code, errors),
        )

    def send(self, machine: Machine, here: Path, there: str) -> None:
        source = f"{here}/" if here.is_dir() else str(here)
        self._copy(machine, "--copy-links", source, f"{_bracketed(machine.destination)}:{there}/")

    def fetch(self, machine: Machine, there: str, here: Path) -> None:
        here.mkdir(parents=True, exist_ok=True)
        self._copy(machine, "--safe-links", f"{_bracketed(machine.destination)}:{there}/", f"{here}/")

    def hang_up(self, machine: Machine) -> None:
        """Close the connection that is kept open for who comes next."""
        if self._control is not None:
            words = [*self._words(machine), "-O", "exit", "--", machine.destination]
            subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)

    def _copy(self, machine: Machine, links: str, source: str, target: str) -> None:
        # Arguments are kept from the shell over there (`-s`). Owners are the machine's own.
        command = [*self._rsync, "-s", "-rltp", links, "--delete", "--delay-updates"]
        command += ["--timeout", str(ALIVE_SECONDS * 3 + CONNECT_SECONDS), "-e", " ".join(self._words(machine))]
        try:
            ended = subprocess.run(
                [*command, "--", source, target],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"{self._rsync[0]} cannot be started: {error.strerror}; install rsync") from error
        if ended.returncode:
            said = ended.stderr.strip()[-_ERROR_CHARS:]
            if "rsync: command not found" in said or "rsync: not found" in said:
                raise HostError(f"{machine.name}: it has no rsync; install it there")
            raise HostError(f"{machine.name}: {source} could not be copied to {target}: {explain(machine, 0, said)}")

    def _words(self, machine: Machine) -> list[str]:
        """Return ssh with all that must stand before the destination."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(ALIVE_SECONDS),
            "ServerAliveCountMax": "3",
        }
        if self._control is not None:
            options |= {
                "ControlMaster": "auto",
                "ControlPath": f"{self._control}/%C",
                "ControlPersist": str(_PERSIST_SECONDS),
            }
        words = [*self._ssh, "-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
        if machine.port is not None:
            words += ["-p", str(machine.port)]
        return words if machine.user is None else [*words, "-l", machine.user]


def control_folder() -> str | None:
    """Return a folder for shared connections that is ours alone; None where there cannot be one."""
    path = Path(f"/tmp/herringbone-ssh-{os.getuid()}")  # noqa: S108 - checked: ours, and nobody else may enter
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return str(path) if ours else None


def _bracketed(destination: str) -> str:
    """Return an IPv6 address as rsync wants it.

    >>> _bracketed("fe80::1"), _bracketed("gpu-1")
    ('[fe80::1]', 'gpu-1')
    """
    return f"[{destination}]" if ":" in destination else destination
