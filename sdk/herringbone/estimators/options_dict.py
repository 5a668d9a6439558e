"""Declare the keyword arguments of the estimators as the user writes them, for editors and type checkers.

`Options` declares the same names with the types that they are converted to; a test keeps both lists equal. Defaults,
units and checks are in `herringbone.estimators.options`. No code imports this module at run time.

The four classes exist because a type checker refuses a name that is both an argument of its own in a signature and a
key of that signature's `**options`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from herringbone.code.git import GitConfig
from herringbone.estimators.options import InputMode, InstanceGroup, LogAction, MetricDefinition, RepositoryAccess
from herringbone.estimators.slurm import SlurmSettings


class CommonOptions(TypedDict, total=False):
    """The options that every estimator takes in `**options`."""

    # The hosts, and how long they may run.
    instance_groups: Sequence[InstanceGroup | Mapping[str, Any]] | None
    max_run: int | None
    max_wait: int | None
    use_spot_instances: bool | None
    max_retry_attempts: int | None
    min_instance_count: int | None
    log_policies: Mapping[str, LogAction] | None
    keep_alive_period_in_seconds: int | None
    volume_size: int | None
    volume_kms_key: str | None
    training_plan: str | None
    instance_placement_config: Mapping[str, Any] | None
    enable_infra_check: bool | None
    enable_remote_debug: bool | None

    # Input and output.
    input_mode: InputMode | None
    model_uri: str | None
    model_channel_name: str | None
    checkpoint_s3_uri: str | None
    checkpoint_local_path: str | None
    output_path: str | None
    output_kms_key: str | None
    disable_output_compression: bool | None

    # The script and its environment.
    dependencies: Sequence[str] | None
    include_secrets: Sequence[str] | None
    git_config: GitConfig | Mapping[str, Any] | None
    code_location: str | None
    container_log_level: int | None
    container_entry_point: Sequence[str] | None
    container_arguments: Sequence[str] | None
    shm_size: int | str | None
    slurm: SlurmSettings | Mapping[str, Any] | None
    bake_requirements: bool | None
    environment: Mapping[str, str] | None

    # The job's name, and values read from its log.
    base_job_name: str | None
    tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None
    metric_definitions: Sequence[MetricDefinition | Mapping[str, str]] | None

    # The account, the network and the registry.
    role: str | None
    sagemaker_session: Any
    enable_session_tag_chaining: bool | None
    subnets: Sequence[str] | None
    security_group_ids: Sequence[str] | None
    encrypt_inter_container_traffic: bool | None
    enable_network_isolation: bool | None
    training_repository_access_mode: RepositoryAccess | None
    training_repository_credentials_provider_arn: str | None
    extra_request: Mapping[str, Any] | None


class OptionsDict(CommonOptions, total=False):
    """`**options` of `Estimator`: all fields of `Options`."""

    framework_version: str | None
    py_version: str | None


class ScriptOptions(CommonOptions, total=False):
    """`**options` of `PyTorch` and `MXNet`."""

    instance_type: str | None
    instance_count: int | None


class TensorFlowOptions(ScriptOptions, total=False):
    """`**options` of `TensorFlow`."""

    entry_point: str | os.PathLike[str] | None
    source_dir: str | os.PathLike[str] | None
    hyperparameters: Mapping[str, Any] | None
