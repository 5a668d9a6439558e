"""The way into a host that is a step of a Slurm job: another step on its node, next to the running one."""

from __future__ import annotations

from collections.abc import Sequence

from herringbone.backends.slurm.commands import SlurmCommands
from herringbone.protocols.host_access import enter_words, relay_words


class NodeWays:
    """The words that reach one node of a job: `job` is Slurm's id, `base` the host's tree on the shared file system.

    A job with an image runs in a container that another step is not in: the commands see the node.
    """

    def __init__(self, slurm: SlurmCommands, job: str, node: str, *, folder: str, base: str, python: str, name: str):
        self._slurm, self._job, self._node = slurm, job, node
        self._folder, self._base, self._python, self._name = folder, base, python, name

    def enter(self, command: Sequence[str], *, terminal: bool) -> list[str]:
        words = enter_words(self._python, self._base, self._name, command)
        return self._slurm.words(*self._srun(terminal), *words, terminal=terminal)

    def relay(self, port: int) -> list[str]:
        return self._slurm.words(*self._srun(terminal=False), *relay_words(self._python, port), terminal=False)

    def _srun(self, terminal: bool) -> list[str]:
        return srun_words(self._job, self._node, self._folder, terminal=terminal)


def srun_words(job: str, node: str, folder: str, *, terminal: bool) -> list[str]:
    """Return srun with the options that join a running job on one of its nodes. Pure.

    >>> srun_words("7", "node-2", "/jobs/a", terminal=True)[:4]
    ['srun', '--jobid=7', '--overlap', '--nodelist=node-2']
    """
    # --overlap: the job's own step has all CPUs and GPUs of the node. No --export: srun hands this environment on.
    words = ["srun", f"--jobid={job}", "--overlap", f"--nodelist={node}", "--nodes=1", "--ntasks=1"]
    words += [f"--chdir={folder}", "--mpi=none", "--quiet"]
    # Without a terminal here srun's --pty would end at once.
    return [*words, "--pty"] if terminal else words
