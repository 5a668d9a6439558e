"""Measured steps of scripts in `HERRINGBONE_HOME/cache/measurements`, found by the content of the job.

    <job>-<data>/measurement.json       one measured step
    <job>-<data>/steps-2x1-<layout>.json  seconds of steps here: 2 processes with 1 thread each
    <job>-<data>/<digest>.answer        an answer of the predictor, by its question

The names are digests of everything that changes a step: <job> of code, hyperparameters, variables and versions of
packages, <data> of the device, and of path and size of the data. Data that is elsewhere was measured with a local
sample: there <job>-<data> is a link to the folder of the job with the sample. The layout of the ranks is not part of
it: one measured step serves all layouts.

The cache is bounded: of more steps than MOST_STEPS, and more answers of a step than MOST_ANSWERS, those go that nobody
has used for the longest time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from herringbone.code.files import code_files
from herringbone.plan.plan import JobPlan
from herringbone.records.home import Home
from herringbone_contract.constants import HostVariable, Key
from herringbone_contract.files import replacing, write_whole
from herringbone_contract.hyperparameters import decode_values, split
from herringbone_contract.prediction.question import WHOLE_MODEL

# Packages that decide the operations of a step; the others come with the code.
_PACKAGES = (
    *("torch", "transformers", "accelerate", "peft", "timm", "torchvision", "torchaudio", "lightning", "diffusers"),
    *("numpy", "herringbone"),
)
# Parameters of `modelparallel` that place ranks and states, which one measured step serves. All others, such as bf16,
# change the operations themselves.
_PLACEMENT = {
    *WHOLE_MODEL,
    *("microbatches", "pipeline", "placement_strategy", "active_microbatches", "memory_weight", "optimize"),
    *("auto_partition", "default_partition", "ddp", "_partition_file"),
}
_MOST_FILES = 100_000
MOST_STEPS, MOST_ANSWERS = 200, 500


class Measurements:
    """The measured steps below a home.

    >>> Measurements(home).folder_of(plan, device="cpu", alone=True)              # doctest: +SKIP
    PosixPath('/home/me/.herringbone/cache/measurements/3f2a...')
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self.folder = home.measurements

    def folder_of(self, plan: JobPlan, *, device: str, alone: bool) -> Path:
        """Return the folder for the step of a plan, which may not exist; `alone` means a job of one rank."""
        return self.folder / f"{self._job(plan)}-{digest([device, alone, _data_sizes(plan)])}"

    def may_have(self, plan: JobPlan) -> bool:
        """Return False if no step of this job was measured; reads neither its data nor the facts of its hosts."""
        return next(self.folder.glob(f"{self._job(plan)}-*"), None) is not None

    def _job(self, plan: JobPlan) -> str:
        return digest([_code_digest(plan, self._home.path), identity(plan), _versions()])


def identity(plan: JobPlan) -> dict[str, Any]:
    """Return the settings of a plan that change a step: not the job's name, and not the places of its ranks. Pure."""
    user, steering = split(plan.hyperparameters)
    values = decode_values(user)
    parameters = values.pop(Key.MODEL_PARALLEL_PARAMETERS, None)
    if isinstance(parameters, Mapping):
        values["modelparallel"] = {name: value for name, value in parameters.items() if name not in _PLACEMENT}
    return {
        "hyperparameters": values,
        "program": steering.get(Key.PROGRAM),
        "environment": {name: value for name, value in plan.environment.items() if name != HostVariable.COMPARE},
    }


def write(path: Path, text: str) -> None:
    """Write a file of the cache, complete or not at all, readable by its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, text.encode())


def used(path: Path) -> None:
    """Note that an entry of the cache was used now, so that `prune` keeps it."""
    with contextlib.suppress(OSError):
        os.utime(path)


def prune(folder: Path, pattern: str, most: int) -> None:
    """Remove the entries of a folder that were not used for the longest time, until `most` are left.

    >>> prune(home.measurements, "*", MOST_STEPS)                       # doctest: +SKIP

    Errors are left to the next call: others may use the same cache now.
    """
    ages: list[tuple[float, Path]] = []
    for path in folder.glob(pattern):
        # Files that another process writes now have hidden names; a link counts by its own age.
        if not path.name.startswith("."):
            with contextlib.suppress(OSError):
                ages.append((path.lstat().st_mtime, path))
    for _, path in sorted(ages)[: max(0, len(ages) - most)]:
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def link(folder: Path, target: Path) -> None:
    """Let another name lead to a measurement's folder, in place of where it led before."""
    with contextlib.suppress(OSError), replacing(folder) as partial:
        Path(partial).symlink_to(target.name)


def digest(value: Any) -> str:
    """Return a name that is the same for equal plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def _code_digest(plan: JobPlan, exclude: Path) -> str:
    content = hashlib.sha256()
    assert plan.source is not None
    files = (
        {Path(plan.source.archive).name: Path(plan.source.archive)}
        if plan.source.archive is not None
        else code_files(plan.source, exclude=exclude)
    )
    for name, path in files.items():
        content.update(f"{name}\0".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                content.update(block)
        content.update(b"\0")
    return content.hexdigest()


def _data_sizes(plan: JobPlan) -> dict[str, Any]:
    sizes = {}
    for channel in plan.channels:
        total = count = 0
        if channel.path is not None:
            for path in _files(Path(channel.path)):
                with contextlib.suppress(OSError):
                    total += path.stat().st_size
                count += 1
                # The first files of a very large folder stand for all of them.
                if count >= _MOST_FILES:
                    break
        sizes[channel.name] = [channel.path or channel.input.s3_data, count, total]
    return sizes


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, names, files in os.walk(path):
        # In order, so that a cut always leaves the same files.
        names.sort()
        yield from (Path(folder, name) for name in sorted(files))


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
