"""The fate of each member of a request: used, refused by name, or ignored for a reason. Pure.

A rule counts for its member and all members below it, unless one of those has a rule of its own. Tests hold the rules
against botocore's model, and `scripts/look_up.py` writes them into docs/look-up/service.md.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from herringbone.serve.errors import ApiError, invalid


class Fate(enum.Enum):
    USED = "used"
    REFUSED = "refused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Rule:
    """The fate of a member, and the reason or a remark."""

    fate: Fate
    reason: str = ""


_USED = Rule(Fate.USED)


def _used(reason: str = "") -> Rule:
    return Rule(Fate.USED, reason)


def _refused(reason: str) -> Rule:
    return Rule(Fate.REFUSED, reason)


def _ignored(reason: str) -> Rule:
    return Rule(Fate.IGNORED, reason)


_DEBUGGER = "SageMaker Debugger is not here; metrics and stacks are those of Herringbone"
_ENCRYPTED = "nothing here is encrypted by KMS"
_NO_REST = "jobs here run on hosts of your own, which have no such thing"

_CREATE = {
    "TrainingJobName": _USED,
    "HyperParameters": _used("values that look like secrets are described masked"),
    "AlgorithmSpecification": _USED,
    "AlgorithmSpecification.TrainingImage": _used("mapped to an image of the engine; processes run without one"),
    "AlgorithmSpecification.AlgorithmName": _refused("there is no marketplace of algorithms; give TrainingImage"),
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries": _ignored("metrics are always kept"),
    "AlgorithmSpecification.TrainingImageConfig": _ignored("the engine pulls images with its own login"),
    "RoleArn": _used("only its name is checked; jobs have the rights of the service's own user"),
    "InputDataConfig": _USED,
    "InputDataConfig[].DataSource.S3DataSource.S3DataType": _used("with `--buckets`, S3Prefix alone"),
    "InputDataConfig[].DataSource.S3DataSource.ModelAccessConfig": _refused(_NO_REST),
    "InputDataConfig[].DataSource.S3DataSource.HubAccessConfig": _refused(_NO_REST),
    "InputDataConfig[].DataSource.FileSystemDataSource": _refused("no EFS or FSx is mounted here; give S3DataSource"),
    "InputDataConfig[].DataSource.DatasetSource": _refused(_NO_REST),
    "OutputDataConfig": _USED,
    "OutputDataConfig.KmsKeyId": _refused(_ENCRYPTED),
    "ResourceConfig": _used("types are mapped to hosts"),
    "ResourceConfig.VolumeSizeInGB": _ignored("jobs use the disks of the hosts"),
    "ResourceConfig.VolumeKmsKeyId": _refused(_ENCRYPTED),
    "ResourceConfig.KeepAlivePeriodInSeconds": _ignored("hosts of your own are always there"),
    "ResourceConfig.TrainingPlanArn": _refused("no capacity is bought here"),
    "ResourceConfig.InstancePlacementConfig": _ignored("the backend places the hosts"),
    "ResourceConfig.InstancePreferences": _refused("give InstanceType"),
    "ResourceConfig.SelectedInstanceType": _refused("give InstanceType"),
    "ResourceConfig.SelectedInstanceCount": _refused("give InstanceCount"),
    "VpcConfig": _ignored("hosts are in your own network"),
    "StoppingCondition": _USED,
    "StoppingCondition.MaxWaitTimeInSeconds": _used("the time in line; ignored where the job does not wait"),
    "StoppingCondition.MaxPendingTimeInSeconds": _refused("give MaxWaitTimeInSeconds"),
    "Tags": _USED,
    "EnableNetworkIsolation": _used("processes refuse it"),
    "EnableInterContainerTrafficEncryption": _used("backends without such a network refuse it"),
    "EnableManagedSpotTraining": _ignored("nobody reclaims hosts of your own"),
    "CheckpointConfig": _USED,
    "DebugHookConfig": _ignored(_DEBUGGER),
    "DebugRuleConfigurations": _refused(_DEBUGGER),
    "TensorBoardOutputConfig": _USED,
    "ExperimentConfig": _refused("there is no experiment service here; use `track`"),
    "ProfilerConfig": _ignored(_DEBUGGER),
    "ProfilerRuleConfigurations": _refused(_DEBUGGER),
    "Environment": _used("values that look like secrets are described masked"),
    "RetryStrategy": _USED,
    "RemoteDebugConfig": _ignored("`herringbone shell` and `debug` look into every job"),
    "InfraCheckConfig": _ignored("each host is checked in any case"),
    "SessionChainingConfig": _ignored("there are no sessions of roles"),
    "ServerlessJobConfig": _refused(_NO_REST),
    "MlflowConfig": _refused("there is no MLflow app here; use `track`"),
    "ModelPackageConfig": _refused("there is no model registry here"),
}

# Members of CreateTrainingJob that the definition of a tuning job's trials does not have.
_NOT_OF_TRIALS = (
    *("TrainingJobName", "HyperParameters", "Tags", "DebugHookConfig", "DebugRuleConfigurations", "ExperimentConfig"),
    *("TensorBoardOutputConfig", "ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig"),
    *("InfraCheckConfig", "SessionChainingConfig", "ServerlessJobConfig", "MlflowConfig", "ModelPackageConfig"),
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries",
    "AlgorithmSpecification.TrainingImageConfig",
)
_CONFIG, _TRIAL = "HyperParameterTuningJobConfig", "TrainingJobDefinition"
_HOSTS = f"{_TRIAL}.HyperParameterTuningResourceConfig"
_ONE_TYPE = "all trials run on one type; give InstanceType"

_CREATE_TUNING = {
    "HyperParameterTuningJobName": _used("trials have the names NAME-001, NAME-002, ..., which must be free"),
    _CONFIG: _USED,
    f"{_CONFIG}.ResourceLimits": _used("the hosts of all trials that run at once are taken until the end"),
    f"{_CONFIG}.RandomSeed": _used("without it, a seed is drawn and kept"),
    f"{_CONFIG}.ParameterRanges.AutoParameters": _used("with Autotune; the ranges around the hints are Herringbone's"),
    f"{_CONFIG}.TuningJobCompletionCriteria.ConvergenceDetected": _used(
        "Disabled alone: AWS does not document its rule; give BestObjectiveNotImproving"
    ),
    _TRIAL: _USED,
    f"{_TRIAL}.DefinitionName": _ignored("there is one definition, and no list that shows names"),
    f"{_TRIAL}.TuningObjective": _refused(f"give {_CONFIG}.HyperParameterTuningJobObjective"),
    f"{_TRIAL}.HyperParameterRanges": _refused(f"give {_CONFIG}.ParameterRanges"),
    f"{_TRIAL}.StaticHyperParameters": _used("values that look like secrets are described masked"),
    **{f"{_TRIAL}.{path}": rule for path, rule in _CREATE.items() if path not in _NOT_OF_TRIALS},
    f"{_TRIAL}.CheckpointConfig": _used("each trial has a folder of its own in it, of the trial's name"),
    _HOSTS: _used("types are mapped to hosts"),
    f"{_HOSTS}.VolumeSizeInGB": _ignored("jobs use the disks of the hosts"),
    f"{_HOSTS}.VolumeKmsKeyId": _refused(_ENCRYPTED),
    f"{_HOSTS}.AllocationStrategy": _refused(_ONE_TYPE),
    f"{_HOSTS}.InstanceConfigs": _refused(_ONE_TYPE),
    "TrainingJobDefinitions": _refused("one search has one definition here; give TrainingJobDefinition"),
    "WarmStartConfig": _used("of tuning jobs of this service that the caller sees, and that are over"),
    "Tags": _used("trials get them, too"),
    "Autotune": _USED,
}
_LIST_MEMBERS = (
    *("NextToken", "MaxResults", "NameContains", "StatusEquals", "SortBy", "SortOrder"),
    *("CreationTimeAfter", "CreationTimeBefore", "LastModifiedTimeAfter", "LastModifiedTimeBefore"),
)
_TUNING_NAME = {"HyperParameterTuningJobName": _USED}

RULES: Mapping[str, Mapping[str, Rule]] = {
    "CreateTrainingJob": _CREATE,
    "DescribeTrainingJob": {"TrainingJobName": _USED},
    "StopTrainingJob": {"TrainingJobName": _USED},
    "DeleteTrainingJob": {"TrainingJobName": _used("also removes the job's folder on its hosts")},
    "ListTrainingJobs": {
        **dict.fromkeys(_LIST_MEMBERS, _USED),
        "WarmPoolStatusEquals": _refused("there are no warm pools"),
        "TrainingPlanArnEquals": _refused("there are no training plans"),
    },
    "UpdateTrainingJob": {
        "TrainingJobName": _USED,
        "ProfilerConfig": _refused(_DEBUGGER),
        "ProfilerRuleConfigurations": _refused(_DEBUGGER),
        "ResourceConfig": _ignored("hosts of your own are always there"),
        "RemoteDebugConfig": _ignored("`herringbone shell` and `debug` look into every job"),
    },
    "CreateHyperParameterTuningJob": _CREATE_TUNING,
    "DescribeHyperParameterTuningJob": _TUNING_NAME,
    "StopHyperParameterTuningJob": {"HyperParameterTuningJobName": _used("running trials are stopped, too")},
    "ListHyperParameterTuningJobs": dict.fromkeys(_LIST_MEMBERS, _USED),
    "ListTrainingJobsForHyperParameterTuningJob": {
        **_TUNING_NAME,
        **dict.fromkeys(("NextToken", "MaxResults", "StatusEquals", "SortBy", "SortOrder"), _USED),
    },
    "DeleteHyperParameterTuningJob": {
        "HyperParameterTuningJobName": _used("of one that is over; its training jobs stay, as at AWS")
    },
    "AddTags": {"ResourceArn": _used("of a training job or a tuning job"), "Tags": _USED},
    "ListTags": {"ResourceArn": _used("of a training job or a tuning job"), "NextToken": _USED, "MaxResults": _USED},
    "DeleteTags": {"ResourceArn": _used("of a training job or a tuning job"), "TagKeys": _USED},
    "Search": {
        "Resource": _used("TrainingJob or HyperParameterTuningJob"),
        "SearchExpression": _USED,
        "SearchExpression.NestedFilters": _refused("use Filters"),
        "SortBy": _USED,
        "SortOrder": _USED,
        "NextToken": _USED,
        "MaxResults": _USED,
        "CrossAccountFilterOption": _ignored("there is one account"),
        "VisibilityConditions": _refused("there are no visibility conditions"),
    },
    "DescribeLogStreams": {
        "logGroupName": _USED,
        "logGroupIdentifier": _USED,
        "logStreamNamePrefix": _USED,
        "orderBy": _USED,
        "descending": _USED,
        "nextToken": _USED,
        "limit": _USED,
    },
    "GetLogEvents": {
        "logGroupName": _USED,
        "logGroupIdentifier": _USED,
        "logStreamName": _USED,
        "startTime": _USED,
        "endTime": _USED,
        "nextToken": _USED,
        "limit": _USED,
        "startFromHead": _USED,
        "unmask": _ignored("logs are masked when they are written, or not at all"),
    },
    "FilterLogEvents": {
        "logGroupName": _USED,
        "logGroupIdentifier": _USED,
        "logStreamNames": _USED,
        "logStreamNamePrefix": _USED,
        "startTime": _USED,
        "endTime": _USED,
        "filterPattern": _used("words and quoted phrases, all of which must be in a line"),
        "nextToken": _USED,
        "limit": _USED,
        "startFromHead": _refused("events come from the oldest to the newest"),
        "interleaved": _ignored("streams are always interleaved, as at AWS"),
        "unmask": _ignored("logs are masked when they are written, or not at all"),
    },
}


def rule_of(operation: str, path: str) -> Rule | None:
    """Return the nearest rule of a member, such as `InputDataConfig[].ChannelName`; None without one."""
    rules = RULES[operation]
    while path:
        if path in rules:
            return rules[path]
        # The next shorter path: without `[]`, or without the last member.
        path = path[:-2] if path.endswith("[]") else path.rpartition(".")[0]
    return None


def fate_of(operation: str, path: str) -> Fate:
    """Return the fate of a member; one without a rule is used."""
    rule = rule_of(operation, path)
    return Fate.USED if rule is None else rule.fate


def check_fates(operation: str, members: Mapping[str, Any]) -> None:
    """Raise `ApiError` (ValidationException) that names each refused member that a request sets."""
    refusals = {
        path: rule.reason
        for path in _paths(members, "")
        if (rule := rule_of(operation, path)) is not None and rule.fate is Fate.REFUSED
    }
    if refusals:
        raise invalid("; ".join(f"{path}: {reason}" for path, reason in refusals.items()))


def check_resource(resource: str, known: Collection[str]) -> None:
    """Raise `ApiError` (UnsupportedOperation) for a kind of resource that Search does not know here."""
    if resource not in known:
        raise ApiError(
            "UnsupportedOperation", f"Search: {resource} cannot be searched for here; {' and '.join(known)} can"
        )


def _paths(value: Any, path: str) -> Iterator[str]:
    """Yield the path of each member that is set; objects that are empty, None and False set nothing."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield from _paths(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for member in value:
            yield from _paths(member, f"{path}[]")
    elif value is not None and value is not False and value != "":
        yield path
