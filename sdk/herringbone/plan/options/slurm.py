"""The option `slurm`: what a job requests from a Slurm cluster, apart from the partition."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from herringbone_contract.errors import OptionError

# Each value becomes part of a line of the batch script: no pattern allows a character that is special to a shell or to
# sbatch's own parser.
_WORDS = {
    "account": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"),
    "qos": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"),
    "gres": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:,=/-]*"),
    "constraint": re.compile(r"[A-Za-z0-9_(\[][A-Za-z0-9_.:,&|*()\[\]-]*"),
    "memory": re.compile(r"[0-9]+[KMGT]?"),
    "login": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]-]*"),
}
_EXAMPLES = {
    "account": "team-a",
    "qos": "high",
    "gres": "gpu:a100:4",
    "constraint": "nvlink&ib",
    "memory": "64G",
    "login": "me@login.cluster",
}


class SlurmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The request for each node: `slurm={"account": "team-a", "gres": "gpu:4"}`.

    - A job gets whole nodes, unless `cpus` is the number of processors it needs on each. `memory` ("64G", or MB without
      a letter) goes with `cpus`.
    - `gres`, `constraint`, `account` and `qos` are options of sbatch.
    - With `requeue`, Slurm restarts the job on other nodes when a node goes down.
    - `login` is the ssh address of a machine with Slurm's commands, if this machine has none.
    - `container_runtime` runs `image_uri`; the default is the runtime that the login node has.
    """

    account: str | None = None
    qos: str | None = None
    gres: str | None = None
    constraint: str | None = None
    cpus: int | None = None
    memory: str | None = None
    requeue: bool = True
    login: str | None = None
    container_runtime: Literal["pyxis", "apptainer", "singularity", "enroot"] | None = None


def check_slurm_settings(settings: SlurmSettings) -> None:
    """Raise `OptionError` for a value that no Slurm option can have. Pure."""
    for name, pattern in _WORDS.items():
        value = getattr(settings, name)
        if value is not None and not pattern.fullmatch(value):
            raise OptionError(
                f"slurm: {name} {value!r} is not a value that Slurm takes; write for example {_EXAMPLES[name]!r}"
            )
    if settings.cpus is not None and settings.cpus < 1:
        raise OptionError(f"slurm: cpus {settings.cpus}: give at least 1, or leave it out for whole nodes")
    if settings.memory is not None and settings.cpus is None:
        raise OptionError("slurm: memory goes with cpus; a job without cpus has whole nodes, and all of their memory")
