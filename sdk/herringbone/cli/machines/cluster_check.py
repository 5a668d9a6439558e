"""`herringbone hosts check k8s:NAMESPACE`: the cluster's answers, and with --deep a job of two pods."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from herringbone.show.tables import aligned
from herringbone.system.sizes import shown_bytes

if TYPE_CHECKING:
    from herringbone.api.job import TrainingJob
    from herringbone.backends.kubernetes.inspection import ClusterReport

_NODE_COLUMNS = ("NODE", "CPUS", "MEMORY", "DEVICES", "MODEL", "STATE")
_QUOTA_COLUMNS = ("QUOTA", "USED", "HARD")
# A pull of a large image takes minutes.
_DEEP_SECONDS, _POLL_SECONDS = 600.0, 1.0


def check_cluster(place: str, *, deep: bool, as_json: bool, role: bool, claim: str | None, **pods: Any) -> int:
    """Print what a check found, or the Role, and return the exit code; `pods` are the options of the two pods."""
    import msgspec

    from herringbone.backends.kubernetes import inspection
    from herringbone.backends.kubernetes.api import Cluster
    from herringbone.backends.kubernetes.claims import parse_place
    from herringbone.backends.kubernetes.names import parse_namespace
    from herringbone.backends.kubernetes.objects import role as role_of
    from herringbone.show.manifests import as_yaml

    namespace = parse_namespace(place)
    if role:
        print(as_yaml([role_of(namespace)]), end="")
        return 0
    if deep and not (pods["image"] and claim):
        raise click.UsageError("--deep starts two pods: give --image and --claim, for their results")
    if given := [name for name in ("image", "gpus") if pods[name] and not deep]:
        raise click.UsageError(f"--{given[0]}: only --deep starts pods")
    report = inspection.look(
        Cluster(pods["context"]), namespace, None if claim is None else parse_place("--claim", claim).claim
    )
    if deep and not report.problems:
        report.health, report.problems = _examine(place, output_path=claim, **pods)
    print(json.dumps(msgspec.to_builtins(report)) if as_json else "\n".join(table(report)))
    return 1 if report.problems else 0


def table(report: ClusterReport) -> list[str]:
    """Return the lines that show a report. Pure."""
    from herringbone.backends.kubernetes.inspection import amount, remarks

    lines = [
        f"server {report.server}, client library {report.client}, namespace {report.namespace}",
        f"workloads: {', '.join(report.workloads)}",
    ]
    nodes = [
        (
            node.name,
            node.cpus,
            shown_bytes(int(amount(node.memory))),
            ", ".join(f"{number} {name}" for name, number in node.devices.items()) or "-",
            node.model or "-",
            node.trouble or "ready",
        )
        for node in report.nodes
    ]
    lines += ["", *aligned([_NODE_COLUMNS, *nodes])] if nodes else []
    quotas = [(name, *amounts) for name, amounts in report.quota.items()]
    lines += ["", *aligned([_QUOTA_COLUMNS, *quotas])] if quotas else []
    lines += ["", *remarks(report), *report.health, *(f"problem: {problem}" for problem in report.problems)]
    return lines if lines[-1] else lines[:-1]


def _examine(
    place: str, context: str | None, image: str, gpus: int | None, output_path: str | None
) -> tuple[list[str], list[str]]:
    """Run a job of two pods, which examine themselves and their link, and return its lines and its problems."""
    from herringbone.api.estimator import Estimator

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "check.py")
        script.write_text("")
        estimator = Estimator(
            "check.py",
            source_dir=folder,
            instance_type=place,
            instance_count=2,
            image_uri=image,
            output_path=output_path,
            gpus=gpus,
            max_run=round(_DEEP_SECONDS),
            enable_infra_check=True,
            kubernetes={} if context is None else {"context": context},
        )
        with _removed(estimator.fit(wait=False, job_name=f"hb-check-{time.time_ns() // 10**9}")) as job:
            return _findings(job, time.sleep)


def _findings(job: TrainingJob, pause: Callable[[float], None]) -> tuple[list[str], list[str]]:
    deadline, state = time.monotonic() + _DEEP_SECONDS, job.describe()
    while state["TrainingJobStatus"] == "InProgress":
        transitions: list[dict[str, Any]] = state.get("SecondaryStatusTransitions") or [{}]
        why = str(transitions[-1].get("StatusMessage", ""))
        if time.monotonic() >= deadline or state.get("Standstill"):
            return [], [f"two pods did not start: {why}"]
        pause(_POLL_SECONDS)
        state = job.describe()
    lines = [line.text for line in job.logs() if line.rank is None]
    problems = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
    if failure := state.get("FailureReason"):
        problems.append(str(failure))
    return sorted(line for line in lines if line.startswith("health: ")), problems


@contextmanager
def _removed(job: TrainingJob) -> Iterator[TrainingJob]:
    try:
        yield job
    finally:
        job.stop(0)
        job.remove()
