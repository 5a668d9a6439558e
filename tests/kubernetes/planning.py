"""Plans of jobs on Kubernetes, for the tests of pure rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from herringbone import Estimator
from herringbone.backends.kubernetes.names import ObjectNames
from herringbone.backends.kubernetes.pods import PodContext
from herringbone.plan.plan import JobPlan
from tests.plans import plan_of

IMAGE = "registry.test/herringbone:1"
ARGUMENTS = {
    "instance_type": "k8s:team-a",
    "instance_count": 2,
    "image_uri": IMAGE,
    "output_path": "pvc://results/jobs",
    "max_run": 3600,
}


def kubernetes_plan(folder: Path, name: str = "digits", inputs: Any = None, **options: Any) -> JobPlan:
    """Return the plan of a script in `folder`, without a review."""
    (folder / "train.py").touch()
    asked = Estimator("train.py", **{**ARGUMENTS, **options})._asked(None)
    return plan_of(asked, folder, inputs=inputs, name=name, backend="kubernetes")


def context_of(plan: JobPlan, **values: Any) -> PodContext:
    return PodContext(names=ObjectNames(plan.job_name), namespace="team-a", **{"owner": "a-uid", **values})
