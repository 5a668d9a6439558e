"""The table of the actions that are served, each with the fate of its members; all else is refused by name. Pure.

Answers, refusals, checks and docs/look-up/service.md come from this table; that of S3 is in `s3.front.operations`. Each
section names a service and an action. A row has paths of members, their fate, and the reason or a remark. It counts for
its members and all members below them, unless one of those has a row of its own. Tests hold the rows against botocore's
model.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from herringbone.s3.front.operations import method_of
from herringbone.serve.errors import ApiError, invalid

# `as` takes the rows of another action, without some, below a path.
_TABLE = """
== sagemaker CreateTrainingJob
TrainingJobName: used
HyperParameters: used values that look like secrets are described masked
AlgorithmSpecification: used
AlgorithmSpecification.TrainingImage: used mapped to an image of the engine; processes run without one
AlgorithmSpecification.AlgorithmName: refused there is no marketplace of algorithms; give TrainingImage
AlgorithmSpecification.EnableSageMakerMetricsTimeSeries: ignored metrics are always kept
AlgorithmSpecification.TrainingImageConfig: ignored the engine pulls images with its own login
RoleArn: used only its name is checked; jobs have the rights of the service's own user
InputDataConfig: used
InputDataConfig[].DataSource.S3DataSource.S3DataType: used with `--buckets`, S3Prefix alone
InputDataConfig[].DataSource.S3DataSource.ModelAccessConfig: refused NOWHERE
InputDataConfig[].DataSource.S3DataSource.HubAccessConfig: refused NOWHERE
InputDataConfig[].DataSource.FileSystemDataSource: refused no EFS or FSx is mounted here; give S3DataSource
InputDataConfig[].DataSource.DatasetSource: refused NOWHERE
OutputDataConfig: used
OutputDataConfig.KmsKeyId: refused ENCRYPTED
ResourceConfig: used types are mapped to hosts
ResourceConfig.VolumeSizeInGB: ignored jobs use the disks of the hosts
ResourceConfig.VolumeKmsKeyId: refused ENCRYPTED
ResourceConfig.KeepAlivePeriodInSeconds: ignored hosts of your own are always there
ResourceConfig.TrainingPlanArn: refused no capacity is bought here
ResourceConfig.InstancePlacementConfig: ignored the backend places the hosts
ResourceConfig.InstancePreferences ResourceConfig.SelectedInstanceType: refused give InstanceType
ResourceConfig.SelectedInstanceCount: refused give InstanceCount
VpcConfig: ignored hosts are in your own network
StoppingCondition: used
StoppingCondition.MaxWaitTimeInSeconds: used the time in line; ignored where the job does not wait
StoppingCondition.MaxPendingTimeInSeconds: refused give MaxWaitTimeInSeconds
Tags: used
EnableNetworkIsolation: used processes refuse it
EnableInterContainerTrafficEncryption: used backends without such a network refuse it
EnableManagedSpotTraining: ignored nobody reclaims hosts of your own
CheckpointConfig: used
DebugHookConfig: ignored DEBUGGER
DebugRuleConfigurations: refused DEBUGGER
TensorBoardOutputConfig: used
ExperimentConfig: refused there is no experiment service here; use `track`
ProfilerConfig: ignored DEBUGGER
ProfilerRuleConfigurations: refused DEBUGGER
Environment: used values that look like secrets are described masked
RetryStrategy: used
RemoteDebugConfig: ignored `herringbone shell` and `debug` look into every job
InfraCheckConfig: used without it, hosts are examined that are several machines
SessionChainingConfig: ignored there are no sessions of roles
ServerlessJobConfig: refused NOWHERE
MlflowConfig: refused there is no MLflow app here; use `track`
ModelPackageConfig: refused there is no model registry here
== sagemaker DescribeTrainingJob
TrainingJobName: used
== sagemaker StopTrainingJob
TrainingJobName: used
== sagemaker DeleteTrainingJob
TrainingJobName: used also removes the job's folder on its hosts
== sagemaker ListTrainingJobs
LISTED: used
WarmPoolStatusEquals: refused there are no warm pools
TrainingPlanArnEquals: refused there are no training plans
== sagemaker UpdateTrainingJob
TrainingJobName: used
ProfilerConfig ProfilerRuleConfigurations: refused DEBUGGER
ResourceConfig: ignored hosts of your own are always there
RemoteDebugConfig: ignored `herringbone shell` and `debug` look into every job
== sagemaker CreateHyperParameterTuningJob
HyperParameterTuningJobName: used trials have the names NAME-001, NAME-002, ..., which must be free
CONFIG: used
CONFIG.ResourceLimits: used the hosts of all trials that run at once are taken until the end
CONFIG.RandomSeed: used without it, a seed is drawn and kept
CONFIG.ParameterRanges.AutoParameters: used with Autotune; the ranges around the hints are Herringbone's
CONFIG.TuningJobCompletionCriteria.ConvergenceDetected: used Disabled alone: CONVERGED
TRIAL: used
TRIAL.DefinitionName: ignored there is one definition, and no list that shows names
TRIAL.TuningObjective: refused give CONFIG.HyperParameterTuningJobObjective
TRIAL.HyperParameterRanges: refused give CONFIG.ParameterRanges
TRIAL.StaticHyperParameters: used values that look like secrets are described masked
TRIAL: as CreateTrainingJob UNTRIED
TRIAL.CheckpointConfig: used each trial has a folder of its own in it, of the trial's name
HOSTS: used types are mapped to hosts
HOSTS.VolumeSizeInGB: ignored jobs use the disks of the hosts
HOSTS.VolumeKmsKeyId: refused ENCRYPTED
HOSTS.AllocationStrategy HOSTS.InstanceConfigs: refused all trials run on one type; give InstanceType
TrainingJobDefinitions: refused one search has one definition here; give TRIAL
WarmStartConfig: used of tuning jobs of this service that the caller sees, and that are over
Tags: used trials get them, too
Autotune: used
== sagemaker DescribeHyperParameterTuningJob
HyperParameterTuningJobName: used
== sagemaker StopHyperParameterTuningJob
HyperParameterTuningJobName: used running trials are stopped, too
== sagemaker ListHyperParameterTuningJobs
LISTED: used
== sagemaker ListTrainingJobsForHyperParameterTuningJob
HyperParameterTuningJobName NextToken MaxResults StatusEquals SortBy SortOrder: used
== sagemaker DeleteHyperParameterTuningJob
HyperParameterTuningJobName: used of one that is over; its training jobs stay, as at AWS
== sagemaker AddTags
ResourceArn: used of a training job or a tuning job
Tags: used
== sagemaker ListTags
ResourceArn: used of a training job or a tuning job
NextToken MaxResults: used
== sagemaker DeleteTags
ResourceArn: used of a training job or a tuning job
TagKeys: used
== sagemaker Search
Resource: used TrainingJob or HyperParameterTuningJob
SearchExpression: used
SearchExpression.NestedFilters: refused use Filters
SortBy SortOrder NextToken MaxResults: used
CrossAccountFilterOption: ignored there is one account
VisibilityConditions: refused there are no visibility conditions
== logs DescribeLogStreams
logGroupName logGroupIdentifier logStreamNamePrefix orderBy descending nextToken limit: used
== logs GetLogEvents
logGroupName logGroupIdentifier logStreamName startTime endTime nextToken limit startFromHead: used
unmask: ignored logs are masked when they are written, or not at all
== logs FilterLogEvents
logGroupName logGroupIdentifier logStreamNames logStreamNamePrefix startTime endTime: used
filterPattern: used words and quoted phrases, all of which must be in a line
nextToken limit: used
startFromHead: refused events come from the oldest to the newest
interleaved: ignored streams are always interleaved, as at AWS
unmask: ignored logs are masked when they are written, or not at all
== monitoring GetMetricStatistics
Namespace MetricName Dimensions StartTime EndTime Period Statistics Unit: used of the metrics of one training job
ExtendedStatistics: refused give Statistics
== sts GetCallerIdentity
== iam GetRole
RoleName: used
"""
# Members of CreateTrainingJob that the definition of a tuning job's trials does not have.
_UNTRIED = """TrainingJobName HyperParameters Tags DebugHookConfig DebugRuleConfigurations ExperimentConfig
    TensorBoardOutputConfig ProfilerConfig ProfilerRuleConfigurations RemoteDebugConfig InfraCheckConfig
    SessionChainingConfig ServerlessJobConfig MlflowConfig ModelPackageConfig
    AlgorithmSpecification.EnableSageMakerMetricsTimeSeries AlgorithmSpecification.TrainingImageConfig"""
_LISTED = """NextToken MaxResults NameContains StatusEquals SortBy SortOrder CreationTimeAfter CreationTimeBefore
    LastModifiedTimeAfter LastModifiedTimeBefore"""
CONFIG, TRIAL = "HyperParameterTuningJobConfig", "TrainingJobDefinition"
NOT_CONVERGED = "AWS does not document its rule; give BestObjectiveNotImproving"
# The words in capitals of the table.
_WORDS = {
    "CONFIG": CONFIG,
    "CONVERGED": NOT_CONVERGED,
    "DEBUGGER": "SageMaker Debugger is not here; metrics and stacks are those of Herringbone",
    "ENCRYPTED": "nothing here is encrypted by KMS",
    "HOSTS": f"{TRIAL}.HyperParameterTuningResourceConfig",
    "LISTED": _LISTED,
    "NOWHERE": "jobs here run on hosts of your own, which have no such thing",
    "TRIAL": TRIAL,
    "UNTRIED": _UNTRIED,
}
_READING = ("Describe", "List", "Get", "Filter", "Search")


class Fate(enum.Enum):
    USED = "used"
    REFUSED = "refused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Rule:
    """The fate of a member, and the reason or a remark."""

    fate: Fate
    reason: str = ""


class Action(NamedTuple):
    """One action that is served: its service, and the rules of its members by their paths."""

    name: str
    service: str
    rules: dict[str, Rule]

    @property
    def changes(self) -> bool:
        """True if it changes something, so that its signed request must not run a second time."""
        return not self.name.startswith(_READING)


def _parsed() -> dict[str, Action]:
    actions: dict[str, Action] = {}
    action = Action("", "", {})
    for line in _TABLE.strip().splitlines():
        if line.startswith("== "):
            _, service, name = line.split()
            action = actions[name] = Action(name, service, {})
            continue
        paths, fate, reason = re.fullmatch(
            r"(.+?): (\w+) ?(.*)", re.sub(r"\b[A-Z]{5,}\b", lambda word: _WORDS.get(word[0], word[0]), line), re.DOTALL
        ).groups()  # type: ignore[union-attr] # every row has this form
        if fate == "as":
            other, *without = reason.split()
            rules = actions[other].rules.items()
            action.rules.update({f"{paths}.{path}": rule for path, rule in rules if path not in without})
        else:
            action.rules.update(dict.fromkeys(paths.split(), Rule(Fate(fate), reason)))
    return actions


ACTIONS = _parsed()
SERVICES = tuple(dict.fromkeys(action.service for action in ACTIONS.values()))


def answers_of(*parts: object) -> dict[str, Callable[..., Any]]:
    """Return the method that answers each action, by the action's name: the part that has one of its name."""
    return {
        action.name: method
        for action in ACTIONS.values()
        for part in parts
        if (method := getattr(part, method_of(action.name), None)) is not None
    }


def not_served(code: str, service: str, name: str) -> ApiError:
    """Return the refusal of an action that this service does not have; AWS's code for it differs between protocols."""
    if service == "iam":
        # As AWS answers users who may not look at IAM. Clients that only check a role go on; `sagemaker` 3.x does.
        return ApiError("AccessDenied", f"this user is not authorized to perform: iam:{name[:100]}", 403)
    served = ", ".join(action.name for action in ACTIONS.values() if action.service == service)
    return ApiError(code, f"{name[:100]}: this service has no such operation; of {service} it has {served}", 501)


def not_here(call: str) -> ApiError:
    """Return the refusal of a call to another service of AWS's."""
    return ApiError(
        "UnknownOperationException",
        f"{call[:200]}: this service stands in for {', '.join(SERVICES)} and s3 alone, which training needs; leave the"
        " call out, or send it to AWS's own endpoint",
    )


def rule_of(operation: str, path: str) -> Rule | None:
    """Return the nearest rule of a member, such as `InputDataConfig[].ChannelName`; None without one."""
    rules = ACTIONS[operation].rules
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
