"""Rehearse an estimator's job: check everything before the first run, and ask before anything is billed."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypedDict

from herringbone.api.planning import backend_of, plan_request
from herringbone.code.git import checked_out
from herringbone.plan.names import MAX_CHARS, check_job_name
from herringbone.plan.options.strategy_names import AUTO
from herringbone.plan.request import absolute, base_job_name, changed, groups_of, refuse_masked
from herringbone.records.home import find_home
from herringbone.records.index import JobIndex
from herringbone.records.rehearsals import make_folder
from herringbone.rehearsal.faults import FAULTS, chosen
from herringbone.rehearsal.rehearse import Stage, rehearse
from herringbone.rehearsal.rows import Rehearsal
from herringbone.rehearsal.runs import run_request
from herringbone.show.console import Console
from herringbone_contract.errors import JobNameError, OptionError

if TYPE_CHECKING:
    from herringbone.plan.request import JobRequest

_SERVICE = "sagemaker"
# Backends whose hosts share nothing by themselves, and what their jobs share.
_SHARED_FOLDERS = {
    "ssh": "a folder in one that the inventory has as `shared`",
    "kubernetes": "a folder of a claim, pvc://CLAIM/FOLDER",
}
# The longest end of a run's name: the number of the backend, the fault, and the job that resumes.
_END_CHARS = max(len(f"-99-{fault}-2") for fault in FAULTS)


class Settings(TypedDict, total=False):
    """The further arguments of `Estimator.rehearse`.

    `across`: the instance types to rehearse on, by default the estimator's. `job_name`: the rehearsal's name, with
    which the names of its jobs begin. `yes`: start jobs of `ml.*`, which AWS bills.
    """

    across: Sequence[str]
    job_name: str | None
    yes: bool


def rehearse_request(
    request: JobRequest,
    faults: Sequence[str] = (),
    across: Sequence[str] = (),
    job_name: str | None = None,
    yes: bool = False,
) -> Rehearsal:
    """Rehearse the job of a request, with these faults, on these instance types, and return the result.

    Each fault that the backend cannot cause is a row that says why. Each run is a job, with checkpoints of its own and
    without trackers. Raises `UsageError` before anything starts: for an unknown fault, a setting that a backend
    refuses, or a job of `ml.*` without `yes` that the user does not agree to; and `InputError` later for a script that
    saves no checkpoint.
    """
    wanted = chosen(faults)
    given = absolute(request)
    if request.arguments.distribution == AUTO:
        raise OptionError("distribution: auto may choose another one for each run; name the one that `plan` chooses")
    name = _made_name(request) if job_name is None else check_job_name(job_name)
    if len(name) > MAX_CHARS - _END_CHARS:
        raise JobNameError(
            f"rehearsal {name!r}: at most {MAX_CHARS - _END_CHARS} letters, as its runs' names are longer"
        )
    refuse_masked(name, request)
    stages = [
        _stage(given if kind is None else changed(given, {"instance_type": kind}), name) for kind in across or (None,)
    ]
    taken = [job for job in JobIndex(find_home().index).names() if job.startswith(f"{name}-")]
    if taken:
        raise JobNameError(
            f"rehearsal {name!r}: there is a job {taken[0]}, as a run could be named; choose another name"
        )
    if (billed := [stage.name for stage in stages if stage.backend.name == _SERVICE]) and not yes:
        raise OptionError(
            f"a rehearsal on {billed[0]} is up to {2 + 2 * len(wanted)} training jobs, each of which AWS bills; say "
            "that you want them with --yes, or yes=True, or rehearse on local, in the same image"
        )
    make_folder(find_home(), name)
    return rehearse(name, stages, wanted, _submit, Console(sys.stderr).say)


def _stage(request: JobRequest, name: str) -> Stage:
    backend = backend_of(request)
    if backend.name in _SHARED_FOLDERS and request.options.checkpoint_s3_uri is None:
        raise OptionError(
            f"checkpoint_s3_uri: jobs of {backend.name} leave their checkpoints on their hosts; name "
            f"{_SHARED_FOLDERS[backend.name]}: each run gets a folder below it"
        )
    stage = Stage(
        ", ".join(dict.fromkeys(group.instance_type for group in groups_of(request))),
        run_request(request, name),
        backend,
    )
    with checked_out(request.options.git_config) as code:
        plan_request(stage.request, backend, f"{name}-1", code)
    return stage


def _submit(request: JobRequest, job: str) -> None:
    from herringbone.api.job import TrainingJob

    backend = backend_of(request)
    with checked_out(request.options.git_config) as code:
        TrainingJob.submit(plan_request(request, backend, job, code), backend)


def _made_name(request: JobRequest) -> str:
    base = re.sub(r"[^A-Za-z0-9]+", "-", base_job_name(request)).strip("-")
    stamp = datetime.now(timezone.utc).strftime("-%y%m%d-%H%M%S")
    return f"{base[: MAX_CHARS - _END_CHARS - len(stamp)].strip('-') or 'job'}{stamp}"
