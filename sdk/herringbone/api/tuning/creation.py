"""Create a tuning job of own hosts: check its first trial, copy the code, write the store, start the searcher."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.code.git import checked_out
from herringbone.plan.options.typed import changed_options
from herringbone.records.again import refuse_masked
from herringbone.records.home import Home, find_home
from herringbone.records.index import JobIndex
from herringbone.show.console import Console
from herringbone.tuner.code_copy import copy_code
from herringbone.tuner.definition import check_local
from herringbone.tuner.names import trial_job_name
from herringbone.tuner.own import OwnTuning
from herringbone.tuner.store import TuningRecord, TuningStore, encode_record
from herringbone.tuner.strategies.choose import strategy_for
from herringbone.tuner.trial_plan import checkpoint_folder, shared_plan, with_metrics
from herringbone.tuner.trials import Proposal
from herringbone_contract.constants import STEERING_PREFIX
from herringbone_contract.errors import JobNameError, OptionError
from herringbone_contract.files import write_whole
from herringbone_contract.masking import masked_hyperparameters

if TYPE_CHECKING:
    from herringbone.api.estimator import Estimator
    from herringbone.plan.inputs import Inputs
    from herringbone.plan.options.typed import MetricDefinition
    from herringbone.plan.plan import JobPlan
    from herringbone.tuner.definition import TuningDefinition


def plan_trial(
    estimator: Estimator, inputs: Inputs, definition: TuningDefinition, metrics: Sequence[MetricDefinition]
) -> JobPlan:
    """Return the plan of a trial in the middle of all ranges, which `fit` would make first. Raises `UsageError`."""
    check_local(definition)
    first = first_trial(estimator, definition, metrics, TuningStore(find_home().tuning(definition.name)))
    return first.plan(inputs, trial_job_name(definition.name, 0))


def create_tuning(
    estimator: Estimator,
    inputs: Inputs,
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
    backend = estimator._backend()
    first = first_trial(estimator, definition, metrics, store)
    with checked_out(first.options.git_config) as checkout:
        plan = first._plan(backend, inputs, trial_job_name(definition.name, 0), checkout)
        with store.creating() as folder:
            code = None
            if plan.source is not None:
                code = copy_code(plan.source, folder / "code", stays_at=store.code, exclude=home.path)
            shared = shared_plan(
                plan, static=definition.static, code=code, checkpoints=estimator.options.checkpoint_s3_uri
            )
            record = TuningRecord(
                definition=msgspec.structs.replace(definition, static=masked_hyperparameters(definition.static)),
                plan=shared.to_dict(),
                backend=backend.name,
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


def first_trial(
    estimator: Estimator, definition: TuningDefinition, metrics: Sequence[MetricDefinition], store: TuningStore
) -> Estimator:
    """Return a copy of the estimator with the settings of a trial in the middle of all ranges."""
    if estimator._copied_checkpoints:
        raise OptionError(
            "estimator: like(resume=True) begins from one job's checkpoints, and each trial of a search begins anew; "
            "make the estimator with like(NAME)"
        )
    # Of an estimator that was attached to a job: its trials would train with the mask as their secret.
    refuse_masked(definition.name, {**estimator._arguments(), **changed_options(estimator.options)})
    if steering := sorted(name for name in definition.ranges if name.startswith(STEERING_PREFIX)):
        raise OptionError(
            f"hyperparameter_ranges: {steering[0]!r} steers the job's container and reaches no script; tune one of the "
            "script's own"
        )
    values: dict[str, Any] = {name: values.from_unit(0.5) for name, values in definition.ranges.items()}
    resource = definition.resources[1] if definition.resource_name is not None else None
    if resource is not None and definition.resource_name is not None:
        values[definition.resource_name] = resource
    trial = copy(estimator)
    trial._hyperparameters = dict(definition.static)
    trial.set_hyperparameters(**values)
    job = trial_job_name(definition.name, 0)
    folder = checkpoint_folder(
        {"checkpoint_s3_uri": estimator.options.checkpoint_s3_uri},
        Proposal(0, {}, resource),
        job=job,
        own=store.checkpoints(job),
    )
    trial.options = msgspec.structs.replace(
        estimator.options,
        metric_definitions=with_metrics(metrics, estimator.options.metric_definitions),
        checkpoint_s3_uri=folder,
    )
    return trial


def _refuse_taken(name: str, home: Home) -> None:
    """Refuse a name whose trials would have the names of jobs that exist: the search would take those for its own."""
    pattern = re.compile(re.escape(name) + r"-\d{3,}")
    taken = next((job for job in JobIndex(home.index).names() if pattern.fullmatch(job)), None)
    if taken is not None:
        raise JobNameError(
            f"tuning job name {name!r}: there is a job {taken}, which is the name of a trial; choose another name, or "
            "leave it out to get a generated one"
        )
