"""Facts about a job that a tracker shows next to its metrics: hyperparameters, tags and the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from herringbone.plan.shown import is_internal
from herringbone.records.index import COMPLETED
from herringbone_contract.hyperparameters import decode_values
from herringbone_contract.masking import masked_hyperparameters, masked_text, printable

MAX_TEXT_CHARS = 500
# MLflow takes 100 in one request.
MAX_TAGS = 90
# Values that every tracker can hold.
_PLAIN = (str, int, float)
_PREFIX = "herringbone."


class JobFacts(NamedTuple):
    """The facts that a tracker shows next to a job's metrics.

    `hyperparameters` are the user's, encoded as JSON texts and masked where they look like secrets. `tags` are short
    texts. `created` and `ended` are seconds since 1970; `ended` is None while the job runs.
    """

    name: str
    status: str
    created: float
    ended: float | None
    hyperparameters: dict[str, str]
    tags: dict[str, str]

    @property
    def completed(self) -> bool:
        return self.status == COMPLETED

    @property
    def own_tags(self) -> dict[str, str]:
        """The tags, for a place that is Herringbone's own."""
        return {name.removeprefix(_PREFIX): value for name, value in self.tags.items()}

    @property
    def values(self) -> dict[str, Any]:
        """The hyperparameters as plain values."""
        values = decode_values(self.hyperparameters).items()
        return {name: value if isinstance(value, _PLAIN) else self.hyperparameters[name] for name, value in values}


def facts_of(description: Mapping[str, Any], *, backend: str, created: float) -> JobFacts:
    """Return the facts in the description of a job, as `TrainingJob.describe` returns it.

    >>> facts_of({"TrainingJobName": "a", "TrainingJobStatus": "Completed"}, backend="local", created=1.0).tags
    {'herringbone.job': 'a', 'herringbone.backend': 'local', 'herringbone.state': 'Completed'}
    """
    ours = description.get("Herringbone") or {}
    algorithm = description.get("AlgorithmSpecification") or {}
    resources = description.get("ResourceConfig") or {}
    failure = str(description.get("FailureReason") or "").partition("\n")[0]
    facts = {
        "job": description["TrainingJobName"],
        "backend": backend,
        "instance_type": resources.get("InstanceType"),
        "instance_count": resources.get("InstanceCount"),
        "image": algorithm.get("TrainingImage"),
        "image_id": ours.get("ImageId"),
        "commit": _commit(ours.get("Code")),
        **{f"version.{name}": version for name, version in (ours.get("Versions") or {}).items()},
        "state": description.get("SecondaryStatus") or description["TrainingJobStatus"],
        "failure": failure,
    }
    tags = {f"{_PREFIX}{name}": _text(value) for name, value in facts.items() if value not in (None, "")}
    for tag in description.get("Tags") or ():
        if len(tags) < MAX_TAGS and isinstance(tag, Mapping) and "Key" in tag:
            # The user's own tags; they replace none of ours.
            tags.setdefault(_text(tag["Key"]), _text(tag.get("Value", "")))
    hyperparameters = {
        name: str(value)
        for name, value in masked_hyperparameters(description.get("HyperParameters") or {}).items()
        if not is_internal(name)
    }
    return JobFacts(
        name=str(description["TrainingJobName"]),
        status=str(description["TrainingJobStatus"]),
        created=created,
        ended=_seconds(description.get("TrainingEndTime")),
        hyperparameters=hyperparameters,
        tags=tags,
    )


def _commit(code: object) -> str | None:
    if not isinstance(code, Mapping) or not code.get("Commit"):
        return None
    # As `git describe` marks a commit with changes.
    return f"{code['Commit']}{'-dirty' if code.get('Dirty') else ''}"


def _text(value: object) -> str:
    return masked_text(printable(str(value)))[:MAX_TEXT_CHARS]


def _seconds(time: object) -> float | None:
    if isinstance(time, str):
        try:
            return datetime.fromisoformat(time).timestamp()
        except ValueError:
            return None
    return None
