"""Plans of requests without a backend's review: no file has to exist."""

from __future__ import annotations

from pathlib import Path

import msgspec

from herringbone.api.planning import located
from herringbone.plan.inputs import Inputs, parse_inputs
from herringbone.plan.plan import JobPlan, make_plan
from herringbone.plan.request import JobRequest


def plan_of(
    request: JobRequest, folder: str | Path, *, inputs: Inputs = None, name: str = "digits-1", backend: str = "local"
) -> JobPlan:
    channels = parse_inputs(inputs, base=Path(folder))
    request, source = located(msgspec.structs.replace(request, folder=str(folder), channels=channels))
    return make_plan(request, source, job_name=name, backend=backend)
