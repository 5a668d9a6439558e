"""Slurm's own commands, on this machine or over ssh where it has none: an argument vector in, text out."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping

from herringbone_contract.errors import SlurmError

# A controller that restarts answers within it.
_ANSWER_SECONDS = 60.0
# What a command needs to find the cluster, and a way to it. sbatch hands on all that it gets, for the controller to
# keep on its disk, and its own variables (SBATCH_*) would overrule the script: so it gets nothing else.
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH"),
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SSH_AUTH_SOCK", "KRB5CCNAME"),
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


class SlurmMissingError(SlurmError):
    """A program is not there, and will not come by waiting."""


class SlurmCommands:
    """Runs Slurm's commands; `login` is where, for ssh, None for this machine.

    >>> SlurmCommands(os.environ).ask("sinfo", "--version")      # doctest: +SKIP
    'slurm-wlm 22.05.8'

    Over ssh, ssh's own configuration says how: its agents, its known hosts, its way through other machines. It asks
    nobody for a password.
    """

    def __init__(self, environ: Mapping[str, str], login: str | None = None, *, run: Run = subprocess.run) -> None:
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self._login = login
        self._run = run

    @property
    def where(self) -> str:
        return "this machine" if self._login is None else self._login

    def ask(self, *words: str, stdin: str = "") -> str:
        """Return what a command writes. Raises `SlurmError` with what it has to say when it fails, or is not there."""
        command = list(words)
        if self._login is not None:
            # ssh gives one text to the other machine's shell.
            command = ["ssh", "-o", "BatchMode=yes", "--", self._login, shlex.join(words)]
        try:
            done = self._run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                env=self._environ,
                timeout=_ANSWER_SECONDS,
            )
        except FileNotFoundError:
            raise SlurmMissingError(self._missing(command[0])) from None
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{words[0]} on {self.where}: no answer within {_ANSWER_SECONDS:g} s") from None
        if done.returncode:
            said = done.stderr.strip() or f"exit code {done.returncode}"
            if self._login is not None and done.returncode == 127:
                raise SlurmMissingError(self._missing(words[0]))
            raise SlurmError(f"{words[0]} on {self.where}: {said}")
        return done.stdout

    def _missing(self, program: str) -> str:
        if program == "ssh":
            return "slurm: login needs the program ssh, which is not on this machine; install OpenSSH's client"
        return (
            f"{program} is not on {self.where}: work on a login node of the cluster, name one "
            "(slurm={'login': 'me@login.cluster'}), or install Slurm's client programs (Debian: slurm-client)"
        )
