"""What a user asks of a Slurm cluster beside its partition."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from herringbone_contract.errors import OptionError

# Each value stands on a line of the batch script: nothing that a shell or sbatch's own parser reads further.
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
    """What a job asks for on each node: `slurm={"account": "team-a", "gres": "gpu:4"}`.

    A job has whole nodes unless `cpus` says how many of each are enough; `memory` goes with `cpus` ("64G", MB without a
    letter). `gres`, `constraint`, `account` and `qos` are sbatch's. With `requeue`, a job whose node went down begins
    anew on others. `login` is where Slurm's commands are, for ssh, when they are not on this machine.
    `container_runtime` runs `image_uri`; left out, it is what the login node has.
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
    """Raise `OptionError` for a value that Slurm could not mean. Pure."""
    for name, pattern in _WORDS.items():
        value = getattr(settings, name)
        if value is not None and not pattern.fullmatch(value):
            raise OptionError(
                f"slurm: {name} {value!r} is nothing that Slurm takes; write for example {_EXAMPLES[name]!r}"
            )
    if settings.cpus is not None and settings.cpus < 1:
        raise OptionError(f"slurm: cpus {settings.cpus}: give at least 1, or leave it out for whole nodes")
    if settings.memory is not None and settings.cpus is None:
        raise OptionError("slurm: memory goes with cpus; a job without cpus has whole nodes, and all of their memory")
