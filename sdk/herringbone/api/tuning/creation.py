"""Create a tuning job of own hosts: check its first trial, copy the code, write the store, start the searcher."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from herringbone.api.planning import backend_of, plan_request
from herringbone.code.git import checked_out
from herringbone.plan.request import JobRequest, absolute, refuse_masked, with_hyperparameters, with_options
from herringbone.records.home import Home, find_home
from herringbone.records.index import JobIndex
from herringbone.show.console import Console
from herringbone.tuner.code_copy import copy_code
from herringbone.tuner.definition import check_local, default_tuning_name, trial_job_name
from herringbone.tuner.own import OwnTuning
from herringbone.tuner.store import TuningRecord, TuningStore, encode_record
from herringbone.tuner.strategies.choose import strategy_for
from herringbone.tuner.trial_plan import (
    checkpoint_folder,
    objective_notes,
    own_metrics,
    shared_request,
    trial_request,
    with_metrics,
)
from herringbone.tuner.trials import Proposal
from herringbone_contract.constants import STEERING_PREFIX
from herringbone_contract.errors import JobNameError, OptionError
from herringbone_contract.files import write_whole
from herringbone_contract.masking import masked_hyperparameters

if TYPE_CHECKING:
    from herringbone.code.git import Checkout
    from herringbone.plan.options.typed import MetricDefinition
    from herringbone.plan.plan import JobPlan
    from herringbone.tuner.definition import TuningDefinition


def plan_trial(request: JobRequest, definition: TuningDefinition, metrics: Sequence[MetricDefinition]) -> JobPlan:
    """Return the plan of a trial in the middle of all ranges, which `fit` would make first. Raises `UsageError`."""
    check_local(definition)
    first = first_trial(request, definition, metrics, TuningStore(find_home().tuning(definition.name)))
    with checked_out(first.options.git_config) as checkout:
        return _planned(first, definition, checkout)


def create_tuning(
    request: JobRequest,
    definition: TuningDefinition,
    *,
    metrics: Sequence[MetricDefinition],
    tags: Sequence[Mapping[str, str]] = (),
    no_links_below: str | None = None,
) -> OwnTuning:
    """Create a tuning job and start its search, and return without waiting.

    `no_links_below` is a folder that others may write to: no trial starts whose addresses lead through a link there.
    Raises `UsageError` before anything is written: for a setting that no trial could have, or a name that is taken.
    """
    check_local(definition)
    # Raises `UnsupportedError` where the strategy needs a package that is missing.
    strategy_for(definition)
    home = find_home()
    home.make()
    store = TuningStore(home.tuning(definition.name))
    _refuse_taken(definition.name, home)
    first = first_trial(request, definition, metrics, store)
    with checked_out(first.options.git_config) as checkout:
        plan = _planned(first, definition, checkout)
        with store.creating() as folder:
            code = None
            if plan.source is not None:
                code = copy_code(plan.source, folder / "code", stays_at=store.code, exclude=home.path)
            shared = shared_request(plan, absolute(request), definition.static, code)
            record = TuningRecord(
                definition=msgspec.structs.replace(definition, static=masked_hyperparameters(definition.static)),
                request=shared.to_dict(),
                backend=plan.backend,
                created=time.time(),
                tags=tuple(dict(tag) for tag in tags),
                no_links_below=no_links_below,
            )
            write_whole(folder / "tuning.json", encode_record(record), synced=True)
    stderr = Console(sys.stderr)
    for note in plan.notes:
        stderr.say(f"tuning job {definition.name}: {note}")
    tuning = OwnTuning(store, home, shared)
    tuning.resume()
    return tuning


def _planned(first: JobRequest, definition: TuningDefinition, checkout: Checkout | None) -> JobPlan:
    plan = plan_request(first, backend_of(first), trial_job_name(definition.name, 0), checkout)
    notes = objective_notes(definition.metric, first.options.metric_definitions)
    return msgspec.structs.replace(plan, warnings=(*plan.warnings, *notes))


def first_trial(
    request: JobRequest, definition: TuningDefinition, metrics: Sequence[MetricDefinition], store: TuningStore
) -> JobRequest:
    """Return the request of a trial in the middle of all ranges."""
    # Of an estimator that was attached to a job: its trials would train with the mask as their secret.
    refuse_masked(definition.name, request)
    if steering := sorted(name for name in definition.ranges if name.startswith(STEERING_PREFIX)):
        raise OptionError(
            f"hyperparameter_ranges: {steering[0]!r} steers the job's container and reaches no script; tune one of the "
            "script's own"
        )
    options, job = request.options, trial_job_name(definition.name, 0)
    resource = definition.resources[1] if definition.resource_name is not None else None
    middle = Proposal(0, {name: values.from_unit(0.5) for name, values in definition.ranges.items()}, resource)
    folder = checkpoint_folder(options.checkpoint_s3_uri, middle, job=job, own=store.checkpoints(job))
    shared = with_options(
        with_hyperparameters(request, dict(definition.static)),
        metric_definitions=with_metrics(metrics, own_metrics(request, definition.metric)),
    )
    return trial_request(shared, definition, middle, job=job, checkpoints=folder)


def free_name(base: str, now: datetime) -> str:
    """Return a generated name that no search has: two searches may begin within one second."""
    home = find_home()
    jobs = JobIndex(home.index).names()
    while True:
        name = default_tuning_name(base, now)
        if not home.tuning(name).exists() and not any(job.startswith(f"{name}-") for job in jobs):
            return name
        now += timedelta(seconds=1)


def _refuse_taken(name: str, home: Home) -> None:
    """Refuse a name whose trials would have the names of jobs that exist: the search would take those for its own."""
    pattern = re.compile(re.escape(name) + r"-\d{3,}")
    taken = next((job for job in JobIndex(home.index).names() if pattern.fullmatch(job)), None)
    if taken is not None:
        raise JobNameError(
            f"tuning job name {name!r}: there is a job {taken}, which is the name of a trial; choose another name, or "
            "leave it out to get a generated one"
        )
