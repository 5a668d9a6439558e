"""Declare and document the keyword arguments of the estimators as the user writes them, for editors and type checkers.

`Options` declares the same names with the types that they are converted to; a test keeps both lists equal. Defaults
and checks are in `herringbone.plan.options.typed`. `options_reference` reads this file for `help()` and for the page of
options. Each class is a section of that page, and its first line is the section's title.

The text below a name is its documentation. It may end in `Unit: U.` and in `Backends: A, B.`, which lists the backends
that use the option: local_process, local (local_gpu, too), ssh, slurm, k8s and ml. All do where there is no list.

The classes at the end exist because a type checker refuses a name that is both an argument of its own in a signature
and a key of that signature's `**options`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from herringbone.plan.git import GitConfig
from herringbone.plan.notify import Notify
from herringbone.plan.options.kubernetes import KubernetesSettings
from herringbone.plan.options.slurm import SlurmSettings
from herringbone.plan.options.typed import InstanceGroup, MetricDefinition, TensorBoardOutputConfig
from herringbone.plan.options.words import InputMode, LogAction, RepositoryAccess


class ScriptArguments(TypedDict, total=False):
    """The script and its settings"""

    entry_point: str | os.PathLike[str] | None
    """The script to run: a path inside `source_dir`, or a path of its own without `source_dir`."""
    source_dir: str | os.PathLike[str] | None
    """The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start."""
    hyperparameters: Mapping[str, Any] | None
    """Settings of the script, which reads each as `--name value`."""


class StrategyArguments(TypedDict, total=False):
    """The image, and the strategy that spreads the training"""

    image_uri: str | None
    """The image of the job's containers. Backends: local, ssh, slurm, k8s, ml."""
    distribution: Mapping[str, Any] | str | None
    """The strategy that starts the ranks: a dict, a name such as "torch_distributed", or "auto"."""


class VersionArguments(TypedDict, total=False):
    """Versions, which select an image of Herringbone's where `image_uri` names none"""

    framework_version: str | None
    """The framework's version in the image. Backends: local, ssh."""
    py_version: str | None
    """Accepted because AWS's SDK has it: each image has one version of Python. Backends: none."""


class TensorFlowArguments(TypedDict, total=False):
    """Of `TensorFlow` alone"""

    model_dir: str | Literal[False] | None
    """The script's hyperparameter `model_dir`: a path or an address. False leaves the hyperparameter out."""


class HuggingFaceArguments(TypedDict, total=False):
    """Of `HuggingFace` alone"""

    transformers_version: str | None
    """The version of transformers in the image. Backends: local, ssh."""
    pytorch_version: str | None
    """Accepted because AWS's SDK has it: each image has one version of PyTorch. Backends: none."""
    tensorflow_version: str | None
    """Accepted because AWS's SDK has it; the script then counts as TensorFlow's. Backends: none."""


class HostArguments(TypedDict, total=False):
    """The hosts"""

    instance_type: str | None
    """One of local_process, local, local_gpu, ssh:INVENTORY, slurm:PARTITION, k8s:NAMESPACE, ml.*."""
    instance_count: int | None
    """The number of hosts. Unit: hosts."""


class TimeOptions(TypedDict, total=False):
    """The hosts in detail, and how long they may run"""

    instance_groups: Sequence[InstanceGroup | Mapping[str, Any]] | None
    """Groups of hosts with a role each, instead of `instance_type` and `instance_count`."""
    max_run: int | str | None
    """The longest time that the job may run: a number, or text such as "1h30m". Unit: seconds."""
    max_wait: int | str | None
    """The longest time in the line of `fit(queue=True)`; on ml, with spot instances, of waiting and running together. \
Unit: seconds. Backends: local_process, local, ssh, ml."""
    gpus: int | None
    """How many GPUs each host takes for itself. None is all visible ones on local_gpu, all on ssh, no claim on \
local_process. Unit: GPUs. Backends: local_process, local, ssh, k8s."""
    priority: int | None
    """The job's rank in a line: larger numbers go first, from -100 to 100. Backends: local_process, local, ssh."""
    use_spot_instances: bool | None
    """Train on spare instances, which cost less and may be taken away; needs `max_wait`. Backends: ml."""
    max_retry_attempts: int | None
    """How often a failed job starts again, from its checkpoints. Unit: restarts. \
Backends: local_process, local, ssh, slurm, k8s, ml."""
    min_instance_count: int | None
    """The fewest hosts with which a retry, or `herringbone scale`, may go on. Unit: hosts. Backends: local_process, \
local, ssh, k8s."""
    keep_global_batch: bool | None
    """Let a step use as many samples on fewer hosts, by larger batches of the ranks; for loops with `Training`. \
Needs `min_instance_count`."""
    retry_without_client: bool | None
    """Have the job's machines start retries by themselves, with the client gone, too. None: where they can, and \
are not two. Backends: ssh, k8s."""
    hang_timeout: int | str | None
    """How long all ranks may be silent before the job hangs. 0 is never; None is 600 for `smp` and `smddp`, \
1800 for others of several ranks. Unit: seconds."""
    check_replicas_every: int | None
    """After how many steps ranks of PyTorch compare their parameters with those of their replicas. Unit: steps."""
    loss_spike_factor: float | None
    """The multiple of its median at which a loss counts as a spike; None looks for none."""
    idle_timeout: int | str | None
    """How long the job's GPUs, or its processors without any, may be unused before it is stopped. Unit: seconds. \
Backends: local_process, local, ssh, slurm, k8s."""
    max_cost: float | None
    """The most that the job may cost: then it is stopped, and saves as at `herringbone stop`. Unit: dollars. \
Backends: local_process, local, ssh, slurm, k8s, ml."""
    dollars_per_hour: float | None
    """The price of a host, where neither AWS's list nor the inventory has it. Unit: dollars an hour."""
    log_policies: Mapping[str, LogAction] | None
    """What a line of the log means for the next attempt, as in `{"NCCL error": "restart"}`. \
Backends: local_process, local, ssh, slurm, k8s."""
    fault_policies: Mapping[str, str] | None
    """What follows a fault, as in `{"hang": "restart"}`. Resume a job has the table of kinds and answers."""
    drain_notice: str | Sequence[str] | None
    """What says that a host is taken away: a file that appears, a URL that answers 200, or a command (a list) \
that exits with 0. Backends: local_process, local, ssh, slurm, k8s."""
    keep_alive_period_in_seconds: int | str | None
    """How long the instances stay for the next job. Unit: seconds. Backends: ml."""
    volume_size: int | None
    """The size of each instance's disk. Unit: GB. Backends: ml."""
    volume_kms_key: str | None
    """The KMS key that encrypts those disks. Backends: ml."""
    training_plan: str | None
    """The ARN of a training plan, which reserves the instances. Backends: ml."""
    instance_placement_config: Mapping[str, Any] | None
    """The placement of instances in UltraServers, as the service's request has it. Backends: ml."""
    enable_infra_check: bool | None
    """Examine the hosts before the first step: memory, disks, devices, network. None: if they are several machines; \
ml decides itself."""
    enable_remote_debug: bool | None
    """Allow a shell in the running containers. Backends: ml."""
    check_memory: bool | None
    """Refuse a job whose predicted peak of memory is above its device's, once its step was measured."""
    check_time: bool | None
    """Refuse a job that is predicted to take longer than `max_run`, or than `max_cost` pays for."""


class DataOptions(TypedDict, total=False):
    """Input and output"""

    input_mode: InputMode | None
    """How channels arrive: as files, or streamed into FIFOs (`Pipe`, not on slurm)."""
    model_uri: str | None
    """The address of a model to begin from, which becomes a channel. Backends: local_process, local, ssh, slurm, ml."""
    model_channel_name: str | None
    """The name of that channel; needs `model_uri`."""
    checkpoint_s3_uri: str | None
    """The folder that keeps the job's checkpoints, for the next job, too: a path, or `s3://` (not on ssh)."""
    keep_checkpoints: Mapping[str, Any] | None
    """Of its checkpoints a job keeps `{"last": 3, "best": 2, "metric": "eval/loss", "objective_type": "Minimize"}`. \
Backends: local_process, local, ssh, slurm, k8s."""
    checkpoint_memory: bool | int | None
    """Also save into the hosts' memory, by default where jobs restart; or after so many steps; `False` for never. \
Backends: local_process."""
    checkpoint_local_path: str | None
    """The script's folder of checkpoints, where that is not /opt/ml/checkpoints. Backends: ml."""
    output_path: str | None
    """The folder below which the packed model is put: a path, or `s3://`. The default is the job's folder."""
    output_kms_key: str | None
    """The KMS key that encrypts the output. Backends: ml."""
    disable_output_compression: bool | None
    """Keep model and output as plain files, without packing them into a tar.gz."""
    tensorboard_output_config: TensorBoardOutputConfig | Mapping[str, Any] | None
    """The folder that keeps TensorBoard's event files: a path as `s3_output_path`, or `s3://` on ml. \
Backends: local_process, local, ssh, slurm, ml."""


class CodeOptions(TypedDict, total=False):
    """The code and its environment"""

    dependencies: Sequence[str] | None
    """More files and folders, which are put next to the script."""
    include_secrets: Sequence[str] | None
    """Files of the code that look like secrets, and travel nevertheless."""
    git_config: GitConfig | Mapping[str, Any] | None
    """The repository, branch or commit from which the code is fetched."""
    code_location: str | None
    """The s3:// folder to which the code is uploaded. Backends: local_process, local, ssh, slurm, ml."""
    container_log_level: int | None
    """The level of the log, as in Python's `logging`."""
    container_entry_point: Sequence[str] | None
    """The program that containers run instead of the image's own, as words. Backends: local, ml."""
    container_arguments: Sequence[str] | None
    """The arguments of that program, as words. Backends: local, ml."""
    shm_size: int | str | None
    """The size of /dev/shm in a container: a number, or text such as "2g". Unit: bytes. Backends: local, ssh, k8s."""
    slurm: SlurmSettings | Mapping[str, Any] | None
    """The request to the cluster, such as `{"gres": "gpu:4"}`. Backends: slurm."""
    kubernetes: KubernetesSettings | Mapping[str, Any] | None
    """The request for each pod, such as `{"cpu": "8", "memory": "64Gi"}`. Backends: k8s."""
    bake_requirements: bool | None
    """Install requirements.txt once, into an image, and not at each start. Backends: local."""
    environment: Mapping[str, str] | None
    """Variables of each rank's environment; secrets belong here."""


class LogOptions(TypedDict, total=False):
    """The job's name, and values read from its log"""

    base_job_name: str | None
    """The beginning of the job's name, before the time. The default is the script's name."""
    tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None
    """Labels of the job: a dict, or a list of `{"Key": ..., "Value": ...}`."""
    metric_definitions: Sequence[MetricDefinition | Mapping[str, str]] | None
    r"""Values to find in the log, as in `[{"Name": "loss", "Regex": r"loss=(\S+)"}]`."""
    track: str | Sequence[str] | None
    """Trackers that get the metrics: `mlflow:http://HOST:PORT/EXPERIMENT`, `tensorboard:FOLDER`, `wandb:PROJECT`."""
    notify: str | Notify | Mapping[str, Any] | Sequence[str | Notify | Mapping[str, Any]] | None
    """Who gets word of the job's end and its troubles: a webhook, a command or mail, as `{"webhook": "env:HOOK"}`."""


class AccountOptions(TypedDict, total=False):
    """The account, the network and the registry"""

    role: str | None
    """The IAM role with which the job runs. Backends: ml."""
    sagemaker_session: Any
    """The boto3 session, or AWS's `sagemaker.Session`, that submits the job. Backends: ml."""
    enable_session_tag_chaining: bool | None
    """Pass the session's tags on to the job. Backends: ml."""
    subnets: Sequence[str] | None
    """The subnets of the job's network; needs `security_group_ids`. Backends: ml."""
    security_group_ids: Sequence[str] | None
    """The security groups of the job's network; needs `subnets`. Backends: ml."""
    encrypt_inter_container_traffic: bool | None
    """Encrypt what hosts send each other. Backends: ml."""
    enable_network_isolation: bool | None
    """Cut the script off from every network but the job's own. Backends: local, ml."""
    training_repository_access_mode: RepositoryAccess | None
    """How the image's registry is reached: `Platform`, or `Vpc` for a private one. Backends: ml."""
    training_repository_credentials_provider_arn: str | None
    """The function that gives the credentials of a private registry. Backends: ml."""
    extra_request: Mapping[str, Any] | None
    """Members of the service's request for which there is no option, under their names there. Backends: ml."""


class CommonOptions(TimeOptions, DataOptions, CodeOptions, LogOptions, AccountOptions, total=False):
    """The options that every estimator takes in `**options`."""


class OptionsDict(CommonOptions, VersionArguments, total=False):
    """`**options` of `Estimator`: all fields of `Options`."""


class ScriptOptions(CommonOptions, HostArguments, total=False):
    """`**options` of `PyTorch` and `MXNet`."""


class FrameworkOptions(CommonOptions, HostArguments, StrategyArguments, VersionArguments, total=False):
    """`**options` of `Framework`."""


class HuggingFaceOptions(CommonOptions, HostArguments, StrategyArguments, total=False):
    """`**options` of `HuggingFace`."""


class LibraryOptions(CommonOptions, HostArguments, total=False):
    """`**options` of `SKLearn` and `XGBoost`."""


class TensorFlowOptions(CommonOptions, HostArguments, ScriptArguments, total=False):
    """`**options` of `TensorFlow`."""
