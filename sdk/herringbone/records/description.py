"""A job of own hosts under the key names of SageMaker's DescribeTrainingJob. Pure: a row and facts in, JSON values out.

Members that SageMaker has no name for are below `Herringbone`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from herringbone.aws.location import is_s3
from herringbone.plan.inputs import local_path
from herringbone.records.home import JobFolder
from herringbone.records.index import FAILED, JobRecord
from herringbone.records.state_lines import listed
from herringbone_contract.constants import DEFAULT_BASE
from herringbone_contract.failure import Failure
from herringbone_contract.failure_text import parse_failure


def describe_service_job(record: JobRecord, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored answer of a service, which is complete, with the tags and with what only this machine knows."""
    description: dict[str, Any] = json.loads(record.description or "{}")
    own = {name: facts[name] for name in ("Code", "Prediction") if name in facts} | _without_value(record, description)
    return description | tags_of(record.plan_dict) | ({"Herringbone": own} if own else {})


def is_complete(record: JobRecord) -> bool:
    """Report whether the row has a service's whole answer; other backends store only members without a column."""
    return record.description is not None and "TrainingJobName" in json.loads(record.description)


def describe_own_job(record: JobRecord, folder: JobFolder, facts: Mapping[str, Any], *, now: float) -> dict[str, Any]:
    """Return the description; members that are not known, as in rows of other releases, are left out.

    `folder` is the job's, `facts` are those of `facts.find_facts`, and `now` ends the time of a job that runs.
    """
    # Member by member, because `JobPlan` cannot read every plan of another release.
    plan = record.plan_dict
    options, hosts = plan.get("options", {}), plan.get("hosts", [])
    failure = failure_of(record)
    metrics = facts.get("FinalMetricDataList")
    members = {
        **listed(record, _iso),
        "FailureReason": None if failure is None else failure.render(),
        "ModelArtifacts": None if record.model is None else {"S3ModelArtifacts": address(record.model)},
        "FinalMetricDataList": metrics or None,
        "AlgorithmSpecification": _algorithm(plan, facts),
        "RoleArn": _role(options.get("role")),
        "HyperParameters": plan.get("hyperparameters", {}),
        "Environment": options.get("environment", {}),
        "InputDataConfig": [_channel(channel) for channel in plan.get("channels", [])],
        "OutputDataConfig": _output(plan, folder),
        "CheckpointConfig": _checkpoints(plan, folder),
        "ResourceConfig": {"InstanceType": hosts[0].get("instance_type"), "InstanceCount": len(hosts)}
        if hosts
        else None,
        "StoppingCondition": {"MaxRuntimeInSeconds": options["max_run"]} if "max_run" in options else None,
        "TrainingStartTime": None if record.started is None else _iso(record.started),
        "TrainingTimeInSeconds": None
        if record.started is None or record.ended is None
        else round((record.ended or now) - record.started),
    }
    description = {} if record.description is None else json.loads(record.description)
    # The facts have it, too.
    description.pop("Standstill", None)
    names = ("Standstill", "ImageId", "Code", "Versions", "Prediction", "Queue", "Slots", "Rehearsed")
    ours = {"JobFolder": str(folder.path)} | {name: facts[name] for name in names if facts.get(name)}
    known = {name: value for name, value in members.items() if value is not None}
    return known | description | tags_of(plan) | {"Herringbone": ours | _without_value(record, known)}


def without_value(definitions: Iterable[Mapping[str, str]], names: Collection[str]) -> list[str]:
    """Return the metrics of definitions that are not among `names`, those with a value.

    >>> without_value([{"Name": "loss", "Regex": "loss=(.)"}, {"Name": "top5", "Regex": "top5=(.)"}], ["loss"])
    ['top5']
    """
    return [name for name in dict.fromkeys(one["Name"] for one in definitions) if name not in names]


def checkpoint_folders(plan: Mapping[str, Any], folder: JobFolder) -> dict[str, Path]:
    """Return the folder with the checkpoints of each host, by host; hosts on one disk have one together.

    >>> plan = {"hosts": [{"name": "algo-1"}], "options": {}}
    >>> checkpoint_folders(plan, JobFolder(Path("/jobs/a")))
    {'algo-1': PosixPath('/jobs/a/hosts/algo-1/ml/checkpoints')}

    `plan` is the one of the job's row.
    """
    names = [host["name"] for host in plan.get("hosts", ())]
    shared = own_folder(plan, "checkpoint_s3_uri")
    if is_s3(plan.get("options", {}).get("checkpoint_s3_uri")):
        shared = folder.s3_checkpoints
    if shared is not None:
        return dict.fromkeys(names, shared)
    own = {name: folder.checkpoints(name) for name in names}
    return {name: own[names[0]] if path.is_symlink() else path for name, path in own.items()}


def output_place(plan: Mapping[str, Any], folder: JobFolder) -> Path:
    """Return the folder with the packed model and output of a job; `plan` is the one of its row."""
    place = own_folder(plan, "output_path")
    return folder.output if place is None else place / folder.path.name / "output"


def own_folder(plan: Mapping[str, Any], option: str) -> Path | None:
    """Return the folder that an option of the job names, None without the option."""
    value = plan.get("options", {}).get(option)
    return None if value is None else local_path(value, base=Path(plan.get("folder", "/")))


def failure_of(record: JobRecord) -> Failure | None:
    """Return the first failure of a job; None unless the job failed."""
    return None if record.failure is None or record.status != FAILED else parse_failure(record.failure)


def address(path: str | Path | None) -> str | None:
    """Return a path of this machine as `file://`, and an address as it is.

    >>> address("/jobs/a/output/model.tar.gz"), address("s3://mine/model.tar.gz")
    ('file:///jobs/a/output/model.tar.gz', 's3://mine/model.tar.gz')
    """
    return None if path is None else str(path) if "://" in str(path) else f"file://{path}"


def tags_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tags, which SageMaker lists in a request of its own, not in the description."""
    tags = plan.get("options", {}).get("tags") or []
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()] if isinstance(tags, dict) else tags}


def _algorithm(plan: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any] | None:
    options = plan.get("options", {})
    # `local_process` takes an image_uri and does not use it.
    named = None if "image_uri" in plan.get("unused", ()) else plan.get("arguments", {}).get("image_uri")
    members = {
        "TrainingImage": facts.get("Image", named),
        "TrainingInputMode": options.get("input_mode", "File"),
        "MetricDefinitions": options.get("metric_definitions") or None,
    }
    return {name: value for name, value in members.items() if value is not None} or None


def _role(role: str | None) -> str | None:
    # Jobs here have no role; a name alone is not what AWS's shape has.
    return role if role and role.startswith("arn:") else None


def _without_value(record: JobRecord, description: Mapping[str, Any]) -> dict[str, Any]:
    definitions = (description.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or ()
    names = [metric["MetricName"] for metric in description.get("FinalMetricDataList") or ()]
    missing = without_value(definitions, names) if record.done else []
    return {"MetricsWithoutValue": missing} if missing else {}


def _channel(channel: Mapping[str, Any]) -> dict[str, Any]:
    source = channel["input"]
    data = {"S3DataType": "S3Prefix", "S3Uri": address(channel.get("path") or source["s3_data"])}
    if "distribution" in source:
        data["S3DataDistributionType"] = source["distribution"]
    return {"ChannelName": channel["name"], "DataSource": {"S3DataSource": data}}


def _output(plan: Mapping[str, Any], folder: JobFolder) -> dict[str, Any]:
    # As on SageMaker, the results are in NAME/output below this folder.
    uncompressed = plan.get("options", {}).get("disable_output_compression", False)
    option = plan.get("options", {}).get("output_path")
    place = option if _is_elsewhere(plan, "output_path") else output_place(plan, folder).parent.parent
    return {"S3OutputPath": address(place), "CompressionType": "NONE" if uncompressed else "GZIP"}


def _checkpoints(plan: Mapping[str, Any], folder: JobFolder) -> dict[str, Any] | None:
    option = plan.get("options", {}).get("checkpoint_s3_uri")
    place = option
    # What pods do not write to an address is gone with them.
    if not _is_elsewhere(plan, "checkpoint_s3_uri") and plan.get("backend") != "kubernetes":
        place = next(iter(checkpoint_folders(plan, folder).values()), None)
    return None if place is None else {"S3Uri": address(place), "LocalPath": f"{DEFAULT_BASE}/checkpoints"}


def _is_elsewhere(plan: Mapping[str, Any], option: str) -> bool:
    """Report whether an option names a bucket or a claim, and no folder of this machine."""
    return plan.get("options", {}).get(option) is not None and own_folder(plan, option) is None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()
