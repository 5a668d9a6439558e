"""Predict on behalf of an estimator: measure, choose a distribution, refuse what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from herringbone.events.refusal import check_memory, check_time, memory_warning, time_warning
from herringbone.plan.plan import JobPlan
from herringbone.plan.replans import smaller
from herringbone.prediction.forecast import Forecaster
from herringbone.prediction.options import Measure, WhatIf
from herringbone.records.home import find_home
from herringbone.show.predictions import flag_text, mesh_text, shown_rate
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import UnsupportedError
from herringbone_contract.prediction.answer import Answer, Prediction

# Layouts that a search for the best one compares.
_COMPARED = 50
_SHOWN_REFUSALS = 5


def predicted(plan: JobPlan, measure: Measure | None, forecaster: Forecaster | None = None) -> JobPlan:
    """Return the plan with its prediction: measured now with `measure`, else only what an earlier measurement tells.

    >>> predicted(plan, Measure()).prediction.planned.step           # doctest: +SKIP

    Raises `UnsupportedError` for a job that does not fit its devices, unless the user chooses among layouts.
    """
    forecaster = forecaster or Forecaster(find_home())
    plan = forecaster.known(plan) if measure is None else forecaster.measured(plan, measure)
    if plan.prediction is None:
        return plan
    planned = plan.prediction.planned
    plan = _compared(plan)
    # Somebody who compares layouts or changes wants to see them, whether the job itself fits or not.
    if measure is None or not (measure.choose or measure.within or measure.what_if != WhatIf()):
        check_memory(planned, enabled=plan.options.check_memory)
        _check_time(plan, planned)
    warnings = filter(None, [memory_warning(planned), time_warning(planned, plan.time_limit)])
    return msgspec.structs.replace(plan, warnings=(*plan.warnings, *warnings))


def chosen(
    make: Callable[[Mapping[str, Any] | None], JobPlan], measure: Measure | None, forecaster: Forecaster | None = None
) -> JobPlan:
    """Return the plan with the distribution that trains fastest; `make` makes a plan of a distribution.

    >>> chosen(make, None).distribution.launcher                     # doctest: +SKIP

    Raises `UnsupportedError` where no layout fits.
    """
    forecaster = forecaster or Forecaster(find_home())
    measure = measure or Measure()
    search = searching(measure)
    answer = forecaster.measured(make(None), search).prediction
    assert answer is not None
    best = best_of(answer)
    plan = make(best.distribution)
    if measure.what_if == WhatIf():
        _check_time(plan, best)
    note = f"distribution: auto took {mesh_text(best)}{_speed(best)}, the best of {_count(answer)}: {flag_text(best)}"
    warnings = [note, *filter(None, [memory_warning(best), time_warning(best, plan.time_limit)])]
    shown = msgspec.structs.replace(answer, planned=best, layouts=answer.layouts if measure.choose else ())
    return msgspec.structs.replace(_compared(plan), prediction=shown, warnings=(*plan.warnings, *warnings))


def searching(measure: Measure | None) -> Measure:
    """Return the settings of a search that compares many layouts."""
    measure = measure or Measure()
    return msgspec.structs.replace(measure, choose=True, limit=max(measure.limit, _COMPARED))


def with_smaller(plan: JobPlan) -> JobPlan:
    """Return a plan that keeps, of the layouts of its search, those to go on with after it has run out of memory.

    Raises `UnsupportedError` where there is none.
    """
    answer = plan.prediction
    assert answer is not None
    layouts = smaller(answer.planned, answer.layouts)
    if not layouts:
        peak = max((memory.peak for memory in answer.planned.memory), default=0) / 2**20
        raise UnsupportedError(
            f"fault_policies: out_of_memory: replan: {_count(answer)}, and none with these ranks and this global batch "
            f"needs clearly less than the {peak:.0f} MiB a rank of {mesh_text(answer.planned)}; leave the answer out, "
            "or give the script a library that divides memory (smdistributed's modelparallel)"
        )
    return msgspec.structs.replace(plan, prediction=msgspec.structs.replace(answer, layouts=layouts))


def _check_time(plan: JobPlan, prediction: Prediction) -> None:
    check_time(prediction, plan.time_limit, option=plan.limiting_option, enabled=plan.options.check_time)


def best_of(answer: Answer) -> Prediction:
    """Return the best layout that fits. Raises `UnsupportedError` with the reasons of the others where none does."""
    best = next((layout for layout in answer.layouts if layout.refusal is None and layout.step is not None), None)
    if best is not None:
        return best
    reasons = dict.fromkeys(layout.refusal or "no time predicted" for layout in answer.layouts)
    lines = "".join(f"\n  {reason}" for reason in list(reasons)[:_SHOWN_REFUSALS])
    raise UnsupportedError(f"distribution: auto: no layout fits these hosts; take more or larger ones:{lines}")


def _compared(plan: JobPlan) -> JobPlan:
    """Return the plan of a job whose ranks report what its prediction is compared with."""
    environment = {HostVariable.COMPARE: "on", **plan.environment}
    return msgspec.structs.replace(plan, options=msgspec.structs.replace(plan.options, environment=environment))


def _speed(layout: Prediction) -> str:
    return "" if layout.samples_per_second is None else f", {shown_rate(layout.samples_per_second)} samples a second"


def _count(answer: Answer) -> str:
    fit = sum(layout.refusal is None for layout in answer.layouts)
    return f"{fit} layout{'s' * (fit != 1)} that fit{'s' * (fit == 1)}"
