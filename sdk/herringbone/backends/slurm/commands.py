"""Slurm's own commands, on this machine or on a login node over ssh: an argument vector in, text out."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

from herringbone.system.remote_line import PLAIN_SSH, remote_line
from herringbone_contract.errors import SlurmError

# A slurmctld that restarts answers within this time.
_ANSWER_SECONDS = 60.0
# Beginnings of the variables by which users set options of Slurm's commands. They would overrule the script and the
# questions, and some, such as SBATCH_ARRAY_INX, have no option that could overrule them.
PREFIXES = ("SBATCH", "SLURM", "SRUN", "SQUEUE", "SCANCEL", "SACCT", "SINFO", "SCONTROL", "SALLOC")
# Those that say where the cluster is, and who the user is.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
# Runs a command without such variables. Only sh and awk are needed, and no letter that a login shell (csh, fish) would
# take for its own between single quotes.
_CLEAN = (
    "names=$(awk 'BEGIN { "
    + "".join(f'delete ENVIRON["{name}"]; ' for name in _KEPT)
    + f"for (name in ENVIRON) if (name ~ /^({'|'.join(PREFIXES)})_[A-Za-z0-9_]+$/) print name }}') || exit 126; "
    'unset names $names; exec "$@"'
)
_CLEANED = ("sh", "-c", _CLEAN, "sh")
# Variables that a command on this machine needs to find and reach the cluster. sbatch gets no others: it sends its
# whole environment to slurmctld, which stores it on disk.
_PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH"),
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SSH_AUTH_SOCK", "KRB5CCNAME"),
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


class SlurmMissingError(SlurmError):
    """A program is missing, so asking again is useless.

    To fix: Install Slurm's client programs on this machine, or submit from the login node.
    """


class SlurmCommands:
    """Runs Slurm's commands at `login`, an address for ssh, or on this machine for None.

    >>> SlurmCommands(os.environ).ask("sinfo", "--version")      # doctest: +SKIP
    'slurm-wlm 22.05.8'

    ssh uses the user's configuration: agents, known hosts, jump hosts. It never asks for a password. Variables that set
    options of Slurm's commands count neither here nor there: the plan has all options.
    """

    def __init__(self, environ: Mapping[str, str], login: str | None = None, *, run: Run = subprocess.run) -> None:
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self._login = login
        self._run = run

    @property
    def where(self) -> str:
        return "this machine" if self._login is None else self._login

    def ask(self, *words: str, stdin: str = "") -> str:
        """Return a command's output. Raises `SlurmError` with its error output when it fails or is missing."""
        command = list(words)
        if self._login is not None:
            command = ["ssh", "-o", "BatchMode=yes", *PLAIN_SSH, "--", self._login, remote_line((*_CLEANED, *words))]
        try:
            process = self._run(
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
        if process.returncode:
            output = process.stderr.strip() or f"exit code {process.returncode}"
            # 127 is the shell's code for a command that it did not find.
            if self._login is not None and process.returncode == 127:
                raise SlurmMissingError(self._missing(words[0]))
            raise SlurmError(f"{words[0]} on {self.where}: {output}")
        return process.stdout

    def words(self, *words: str, terminal: bool) -> list[str]:
        """Return the words of a program that the caller runs in its own terminal, or without one."""
        # The caller's environment is that of the user's shell.
        words = (*_CLEANED, *words)
        if self._login is None:
            return list(words)
        # -tt: srun needs a terminal there, too.
        return ["ssh", *PLAIN_SSH, *(["-tt"] if terminal else ["-T"]), "--", self._login, remote_line(words)]

    def _missing(self, program: str) -> str:
        if program == "ssh":
            return "slurm: login needs the program ssh, which is not on this machine; install OpenSSH's client"
        return (
            f"{program} is not on {self.where}: work on a login node of the cluster, name one "
            "(slurm={'login': 'me@login.cluster'}), or install Slurm's client programs (Debian: slurm-client)"
        )
