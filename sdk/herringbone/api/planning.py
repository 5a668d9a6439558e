"""Plan a request, and start its job: the way that `fit`, the trials of a search and the service share.

request -- find code --> make_plan -- looked over for its backend --> predicted, or the best of a search --> JobPlan
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.backends.registry import backend_for
from herringbone.code.git import Checkout, check_inside, checked_out
from herringbone.plan.links import result_folders
from herringbone.plan.names import check_job_name, default_job_name
from herringbone.plan.options.strategy_names import AUTO
from herringbone.plan.plan import JobPlan, make_plan
from herringbone.plan.replans import is_replanned
from herringbone.plan.request import JobRequest, base_job_name, changed, groups_of, with_options
from herringbone.plan.source import SourceCode, find_source

if TYPE_CHECKING:
    from herringbone.api.job import TrainingJob
    from herringbone.prediction.options import Measure
    from herringbone.protocols.backend import Backend


def backend_of(request: JobRequest) -> Backend:
    """Return the backend that runs a request's instance types. Raises `UsageError` for types of two backends."""
    return backend_for(*(group.instance_type for group in groups_of(request)))


def plan_request(
    request: JobRequest,
    backend: Backend,
    job_name: str | None = None,
    code: Checkout | None = None,
    *,
    choose: bool = False,
    measure: bool | Measure = False,
) -> JobPlan:
    """Return the plan of a request, with what is known, or measured, about memory and time. Starts nothing.

    >>> plan_request(asked, backend_of(asked), "digits").job_name          # doctest: +SKIP
    'digits'

    `code` are the files of its `git_config`. With `choose`, or the distribution "auto", the script is measured and the
    plan takes the strategy that trains fastest. Raises the `UsageError`s that starting the job would raise.
    """
    from herringbone.records.home import find_home

    if request.arguments.distribution == AUTO:
        request, choose = changed(request, {"distribution": None}), True
    replanned = is_replanned(request.options)
    if not (choose or measure or replanned or find_home().has_measurements):
        return _made(request, backend, job_name, code)
    # Imported here: most jobs have no prediction, and their users wait for the first line.
    from herringbone.prediction.estimating import chosen, predicted, searching, with_smaller
    from herringbone.prediction.options import parse_measure
    from herringbone.system.progress import Progress

    def made(found: Mapping[str, Any] | None) -> JobPlan:
        other = request if found is None else changed(request, {"distribution": found})
        return _made(other, backend, job_name, code)

    settings = parse_measure(measure)
    if replanned:
        settings = searching(settings)
        Progress().say(
            "fault_policies: out_of_memory: replan: looking for smaller layouts before the start; that takes minutes "
            "where this script was not measured yet"
        )
    plan = chosen(made, settings) if choose else predicted(made(None), settings)
    plan = with_smaller(plan) if replanned else plan
    # A job with a prediction has one variable more.
    return plan if plan.request is None else msgspec.structs.replace(plan, request=backend.request(plan))


def start_request(
    request: JobRequest,
    job_name: str | None = None,
    *,
    choose: bool = False,
    show_start: bool = False,
    before: Callable[[JobPlan], None] = lambda _: None,
) -> TrainingJob:
    """Start the job of a request and return it, without waiting; `before` is called between its plan and its start.

    Raises `UsageError` before anything starts.
    """
    # Imported here: `import herringbone` needs none of it.
    from herringbone.api.ends import say_before, say_of, say_start
    from herringbone.api.job import TrainingJob

    backend = backend_of(request)
    with checked_out(request.options.git_config) as code:
        plan = plan_request(request, backend, job_name, code, choose=choose)
        say_before(plan)
        before(plan)
        # Within the block, because the end of the block deletes the code that `submit` copies or packs.
        try:
            job = TrainingJob.submit(plan, backend)
        except KeyboardInterrupt:
            say_of(plan)("interrupted before it had started")
            raise
    if show_start:
        say_start(plan)
    return job


def _made(request: JobRequest, backend: Backend, job_name: str | None, code: Checkout | None) -> JobPlan:
    request, source = located(request, code)
    # UTC, so that names sort by time on machines of different time zones.
    name = default_job_name(base_job_name(request), datetime.now(timezone.utc)) if job_name is None else job_name
    plan = make_plan(request, source, job_name=check_job_name(name), backend=backend.name)
    options = request.options
    if options.max_cost is not None or options.dollars_per_hour is not None or backend.name == "ssh":
        # Imported here, and below: who only makes an estimator needs none of it.
        from herringbone.prediction.prices import priced
        from herringbone.records.home import find_home

        plan = priced(plan, find_home().cache / "prices")
    from herringbone.backends.review.checks import reviewed

    return reviewed(plan, backend)


def located(request: JobRequest, code: Checkout | None = None) -> tuple[JobRequest, SourceCode | None]:
    """Return a request whose code is named by absolute paths, and that code; None for an image's own program."""
    arguments, options, folder = request.arguments, request.options, Path(request.folder)
    if arguments.entry_point is None:
        return request, None
    source = find_source(
        arguments.entry_point,
        arguments.source_dir,
        options.dependencies,
        base=folder if code is None else code.folder,
        secrets=options.include_secrets,
    )
    source = msgspec.structs.replace(source, results=result_folders(options, source, base=folder))
    if code is not None:
        check_inside(source, code.folder)
        source = msgspec.structs.replace(source, revision=code.revision)
    elif options.git_config is None:
        # Absolute, so that `attach` finds them from any folder.
        request = msgspec.structs.replace(
            with_options(request, dependencies=source.dependencies),
            arguments=msgspec.structs.replace(arguments, **source.arguments),
        )
    return request, source
