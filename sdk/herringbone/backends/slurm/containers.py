"""Supervisors in containers, run by the program that the cluster has: pyxis, Apptainer (or Singularity), enroot.

    pyxis       srun --container-image=IMAGE --container-mounts=... env ... train
    apptainer   srun env ... apptainer exec --bind ... IMAGE train
    enroot      srun env ... enroot start --mount ... IMAGE train

`train` is the supervisor of an image that `herringbone images build` made. The job's folder, its channels and its
checkpoints have the same paths inside as outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from herringbone.backends.review.checks import checkpoint_folder, tensorboard_folder
from herringbone_contract.errors import InputError, SlurmError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.backends.slurm.commands import SlurmCommands
    from herringbone.plan.plan import JobPlan
    from herringbone.records.home import Home

Runtime = Literal["pyxis", "apptainer", "singularity", "enroot"]
# One word that no list of mounts would split, and that no program would take for an option.
_IMAGE = re.compile(r"[A-Za-z0-9_/.][A-Za-z0-9_/.:@#+=-]*")
_PROGRAM = "train"
# Variables of this Python and its folders; the container has a Python of its own.
_NOT_INSIDE = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_NO_USER_SITE = "PYTHONNOUSERSITE"
# Variables that Slurm sets on a node and that ranks read.
_OF_SLURM = ("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_RESTART_COUNT", "CUDA_VISIBLE_DEVICES")
_HELP = "name one by slurm={'container_runtime': ...} where the nodes have it, or leave image_uri out"


class Container(NamedTuple):
    """The command line of a supervisor in a container: options of srun, and the words that run the supervisor."""

    srun: list[str]
    argv: list[str]


def image_of(plan: JobPlan) -> str | None:
    """Return the image that a job names, None for a job in the nodes' Python. Raises `InputError`."""
    image = plan.arguments.image_uri
    if image is None:
        return None
    if not _IMAGE.fullmatch(image):
        raise InputError(
            f"image_uri: {image!r} is not an image; write a .sif or .sqsh file's path, or registry/name:tag"
        )
    if image.startswith("/") and not Path(image).exists():
        raise InputError(f"image_uri: {image}: no such file")
    return str(image)


def find_runtime(slurm: SlurmCommands) -> Runtime:
    """Return the program that runs containers on a cluster, as its login node has it. Raises `UnsupportedError`."""
    if "--container-image" in slurm.ask("srun", "--help"):
        return "pyxis"
    programs: tuple[tuple[Runtime, str], ...] = (
        ("apptainer", "--version"),
        ("singularity", "--version"),
        ("enroot", "version"),
    )
    for program, question in programs:
        with suppress(SlurmError):
            slurm.ask(program, question)
            return program
    raise UnsupportedError(
        f"image_uri: {slurm.where} has neither pyxis nor Apptainer, Singularity or enroot to run an image with; {_HELP}"
    )


def mounts_of(plan: JobPlan, home: Home) -> list[tuple[str, bool]]:
    """Return the paths of the shared file system to mount in a container, each with whether it is writable."""
    mounts = [(str(home.job(plan.job_name).path), True)]
    checkpoints = checkpoint_folder(plan)
    if checkpoints is not None:
        mounts.append((str(checkpoints), True))
    tensorboard = tensorboard_folder(plan)
    if tensorboard is not None:
        mounts.append((str(tensorboard), True))
    mounts += [(str(channel.path), False) for channel in plan.channels]
    return list(dict.fromkeys(mounts))


def container_of(
    runtime: Runtime, image: str, mounts: Iterable[tuple[str, bool]], *, names: Iterable[str], gpus: bool
) -> Container:
    """Return the words that start a supervisor in a container.

    >>> container_of("apptainer", "/images/a.sif", [("/shared/job", True)], names=[], gpus=True).argv[-5:]
    ['--bind', '/shared/job:/shared/job', '--nv', '/images/a.sif', 'train']

    `names` are the variables that the supervisor needs; `gpus` says whether the job asks for GPUs. Pure. Raises
    `InputError` for a path that cannot be mounted, `UnsupportedError` for an image that the runtime cannot run.
    """
    pairs = [_pair(path, writable=writable) for path, writable in mounts]
    # Unset on the node, because Apptainer hands the whole environment on to the container.
    clean = ["env", *(word for name in _NOT_INSIDE for word in ("-u", name)), f"{_NO_USER_SITE}=1"]
    if runtime == "pyxis":
        return Container([f"--container-image={image}", f"--container-mounts={','.join(pairs)}"], [*clean, _PROGRAM])
    if runtime == "enroot":
        if not image.startswith("/"):
            raise UnsupportedError(
                f"image_uri: enroot starts a .sqsh file, not {image!r}; make one (`enroot import docker://{image}`) "
                "where the nodes see it, and give its absolute path"
            )
        # enroot hands no variable on unless it is named.
        passed = [*names, *_OF_SLURM, _NO_USER_SITE]
        words = [word for name in dict.fromkeys(passed) for word in ("--env", name)]
        words += [word for pair in pairs for word in ("--mount", _for_enroot(pair))]
        return Container([], [*clean, "enroot", "start", *words, image, _PROGRAM])
    binds = [word for pair in pairs for word in ("--bind", pair)]
    source = image if image.startswith("/") or "://" in image else f"docker://{image}"
    return Container([], [*clean, runtime, "exec", *binds, *(["--nv"] if gpus else []), source, _PROGRAM])


def without_python_folders(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that name this Python's folders."""
    return {name: value for name, value in variables.items() if name not in _NOT_INSIDE}


def _pair(path: str, *, writable: bool) -> str:
    if any(letter in path for letter in ":,"):
        raise InputError(f"image_uri: {path} cannot be mounted in a container: its name has a ':' or a ','; rename it")
    return f"{path}:{path}" if writable else f"{path}:{path}:ro"


def _for_enroot(pair: str) -> str:
    """Return a mount in enroot's syntax, which is a line of fstab with colons.

    >>> _for_enroot("/data:/data:ro")
    '/data:/data:none:x-create=auto,bind,ro'
    """
    source, target, *read_only = pair.split(":")
    return f"{source}:{target}:none:{','.join(['x-create=auto', 'bind', *read_only])}"
