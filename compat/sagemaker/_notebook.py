"""The base of the estimators: SDK v2's habits on top of Herringbone's classes."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sagemaker
from herringbone import Estimator, InstanceGroup, OptionError, TensorBoardOutputConfig
from herringbone.aws.credentials import find_region
from herringbone.aws.fields import tag_list
from herringbone.aws.location import is_s3
from herringbone.backends.sagemaker.review import image_by_version
from herringbone.plan.arguments import names_of
from herringbone.plan.frameworks import IMAGES
from herringbone.plan.options.names import LEFT_OUT, RENAMED
from herringbone.plan.request import changed
from herringbone.records.index import FAILED
from herringbone.serve.personal import folder_of
from herringbone_contract.constants import Key
from sagemaker import _absent
from sagemaker.job import TrainingJob

# The instance type of all jobs of these names, whatever the notebook says: its jobs then run there.
INSTANCE_TYPE_VARIABLE = "HERRINGBONE_INSTANCE_TYPE"
# The names of SDK v1 -> those of v2, which takes both.
_RENAMED = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_volume_size": "volume_size",
    "train_volume_kms_key": "volume_kms_key",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "image_name": "image_uri",
    "image": "image_uri",
    "distributions": "distribution",
    # SDK v2 ignores this name, which its classes that host or process have.
    "env": "environment",
}
# Keywords of SDK v1 and v2 that say what is the case here anyway: scripts are what runs, and metrics are always kept.
_IDLE = ("script_mode", "enable_sagemaker_metrics")
# Options of SDK v2 that Herringbone has not, and refuses.
_SDK_ALONE = ("image_uri_region", "training_image_config")
# Options that SDK v2 leaves out where the value is empty or 0; wrappers around its estimators always give them.
_LEFT_OUT_EMPTY = frozenset(
    (
        "base_job_name", "checkpoint_local_path", "checkpoint_s3_uri", "git_config", "image_uri", "max_wait",
        "model_uri", "source_dir",
    )
)  # fmt: skip
# Hyperparameters that SDK v2 and a search write for a script.
_WRITTEN = frozenset(
    (
        Key.PROGRAM, Key.SUBMIT_DIRECTORY, Key.LOG_LEVEL, Key.JOB_NAME, Key.REGION, Key.TUNING_METRIC,
        "sagemaker_estimator_class_name", "sagemaker_estimator_module",
    )
)  # fmt: skip
# What an estimator of SDK v2 has beside training.
_REFUSED = (
    "compile_model", "create_model", "delete_endpoint", "deploy", "disable_profiling", "disable_remote_debug",
    "enable_default_profiling", "enable_remote_debug", "get_app_url", "get_remote_debug_config",
    "get_session_chaining_config", "latest_job_debugger_artifacts_path", "latest_job_profiler_artifacts_path",
    "latest_job_tensorboard_artifacts_path", "prepare_workflow_for_training", "register", "transformer",
    "update_profiler",
)  # fmt: skip


def on_own_hosts(environ: Mapping[str, str]) -> bool:
    """Say whether the environment sends all jobs to hosts of your own.

    >>> on_own_hosts({"HERRINGBONE_INSTANCE_TYPE": "local_process"}), on_own_hosts({})
    (True, False)
    """
    chosen = environ.get(INSTANCE_TYPE_VARIABLE, "")
    return bool(chosen) and not chosen.startswith("ml.")


def asked(session: Any) -> Any:
    """Return the session to ask for a job: none on your own hosts, whose jobs no service has."""
    return None if on_own_hosts(os.environ) else session


def adapted(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return an estimator's keyword arguments with the instance type that the environment names.

    >>> adapted({"instance_type": "ml.p3.2xlarge"}, {"HERRINGBONE_INSTANCE_TYPE": "local_process"})
    {'instance_type': 'local_process'}
    >>> adapted({"max_wait": 0, "source_dir": ""}, {})
    {}
    """
    values = {}
    for name, value in options.items():
        if (now := _RENAMED.get(name, name)) != name:
            warnings.warn(f"{name} is {now} since SDK v2", DeprecationWarning, stacklevel=4)
        if (now not in _IDLE or value is False) and (value or now not in _LEFT_OUT_EMPTY):
            values[now] = value
    if metrics := values.get("metric_definitions"):
        values["metric_definitions"] = [one for one in metrics if _records(one)]
    chosen = environ.get(INSTANCE_TYPE_VARIABLE)
    if not chosen:
        return values
    board = values.get("tensorboard_output_config")
    if isinstance(board, TensorBoardOutputConfig) and chosen.startswith("local"):
        # Where buckets are folders of this machine, its files need no copy.
        place = folder_of(board.s3_output_path, environ) or board.s3_output_path
        values["tensorboard_output_config"] = TensorBoardOutputConfig(place, board.container_local_output_path)
    groups = values.get("instance_groups")
    if groups:
        values["instance_groups"] = [
            InstanceGroup(group.instance_group_name, chosen, group.instance_count) for group in groups
        ]
    else:
        values["instance_type"] = chosen
    return values


def known(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments without those that SDK v2 takes and drops, which a warning names.

    >>> known("PyTorch", {"max_run": 60})
    {'max_run': 60}
    """
    names = {*names_of(kind), *RENAMED, *LEFT_OUT, *_SDK_ALONE}
    for name in options.keys() - names:
        warnings.warn(f"{name}: no option of {kind}; it has no effect, as with AWS's SDK v2", stacklevel=3)
    return {name: value for name, value in options.items() if name in names}


def handed_on(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a script's hyperparameters without those that its job writes itself.

    A notebook gives those of an earlier job: `PyTorch(..., hyperparameters=tuner.best_estimator().hyperparameters())`.

    >>> handed_on({"epochs": "3", "sagemaker_program": '"train.py"'})
    {'epochs': '3'}
    """
    return {name: value for name, value in hyperparameters.items() if name not in _WRITTEN}


def named_script(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a script that hyperparameters name, as notebooks with images of their own start one.

    >>> named_script({"hyperparameters": {"sagemaker_program": '"a.py"', "sagemaker_submit_directory": "s3://b/c.tgz"}})
    {'entry_point': 'a.py', 'source_dir': 's3://b/c.tgz', 'hyperparameters': {}}

    Such notebooks encode all values themselves. Without such names, nothing.
    """
    given = options.get("hyperparameters")
    if options.get("entry_point") or not isinstance(given, Mapping) or Key.PROGRAM not in given:
        return {}
    values = {name: _decoded(value) for name, value in given.items()}
    return {
        "entry_point": values.pop(Key.PROGRAM),
        "source_dir": values.pop(Key.SUBMIT_DIRECTORY, None),
        "hyperparameters": values,
    }


def _decoded(value: Any) -> Any:
    with suppress(TypeError, ValueError):
        return json.loads(value)
    return value


def _records(definition: Mapping[str, str]) -> bool:
    """Say whether a metric can have a value. AWS takes an expression without a group; notebooks have such a dummy."""
    try:
        groups = re.compile(definition["Regex"]).groups
    except (re.error, KeyError, TypeError):
        # The plan says what is wrong.
        return True
    if not groups:
        warnings.warn(f"metric {definition.get('Name')}: its Regex has no group, and records nothing", stacklevel=5)
    return groups > 0


def region_of(session: Any, environ: Mapping[str, str]) -> str:
    """Return the region of a notebook's jobs: its session's, else the one that is configured. Raises `OptionError`."""
    region = getattr(session, "boto_region_name", None) or getattr(session, "region_name", None)
    region = region or find_region(environ)
    if not region:
        raise OptionError("image_uri: AWS's images are named by region; set AWS_REGION, or give image_uri")
    return str(region)


class Notebook(Estimator):
    """Adapts keyword arguments; the first base of each estimator here."""

    # Names of hyperparameters and places, which SDK v2's classes have.
    LAUNCH_PT_XLA_ENV_NAME = "sagemaker_pytorch_xla_multi_worker_enabled"
    LAUNCH_PS_ENV_NAME = "sagemaker_parameter_server_enabled"
    LAUNCH_MPI_ENV_NAME = "sagemaker_mpi_enabled"
    LAUNCH_SM_DDP_ENV_NAME = "sagemaker_distributed_dataparallel_enabled"
    LAUNCH_MWMS_ENV_NAME = "sagemaker_multi_worker_mirrored_strategy_enabled"
    LAUNCH_PYTORCH_DDP_ENV_NAME = "sagemaker_pytorch_ddp_enabled"
    LAUNCH_TORCH_DISTRIBUTED_ENV_NAME = "sagemaker_torch_distributed_enabled"
    INSTANCE_TYPE = INSTANCE_TYPE_ENV_NAME = "sagemaker_instance_type"
    MPI_NUM_PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
    MPI_CUSTOM_MPI_OPTIONS = "sagemaker_mpi_custom_mpi_options"
    SM_DDP_CUSTOM_MPI_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
    CONTAINER_CODE_CHANNEL_SOURCEDIR_PATH = "/opt/ml/input/data/code/sourcedir.tar.gz"
    UNSUPPORTED_DLC_IMAGE_FOR_SM_PARALLELISM = ("2.0.1-gpu-py310-cu121",)
    JOB_CLASS_NAME = "training-job"
    # What watches a job at AWS alone.
    rules = debugger_rule_configs = debugger_hook_config = profiler_config = profiler_rule_configs = None
    disable_profiler, enable_sagemaker_metrics = True, None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options = known(self._kind, adapted(options, os.environ))
        if not arguments and os.environ.get(INSTANCE_TYPE_VARIABLE) == "local_process":
            options |= named_script(options)
        if isinstance(options.get("hyperparameters"), Mapping) and (arguments or options.get("entry_point")):
            options["hyperparameters"] = handed_on(options["hyperparameters"])
        if os.environ.get(INSTANCE_TYPE_VARIABLE, "").startswith("local"):
            session = options.get("sagemaker_session")
            session = session if isinstance(session, sagemaker.Session) else sagemaker.Session(session)
            for name in ("output_path", *(("code_location",) if arguments or options.get("entry_point") else ())):
                if options.get(name) is None:
                    options[name] = session._default_output()
        super().__init__(*arguments, **options)

    def set_hyperparameters(self, **hyperparameters: Any) -> None:
        """Add or replace hyperparameters; see `handed_on`."""
        super().set_hyperparameters(**handed_on(hyperparameters) if self.entry_point else hyperparameters)

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: bool | str = True,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Any:
        """Start the job; see `herringbone.Estimator.fit`. On own hosts an experiment's names become tags of the job."""
        if experiment_config is None or not on_own_hosts(os.environ):
            return super().fit(inputs, wait, logs, job_name, experiment_config, **settings)
        request = self._request
        tags = [*tag_list(request.options.tags), *tag_list(experiment_config)]
        self._request = changed(request, {"tags": tags})
        try:
            return super().fit(inputs, wait, logs, job_name, **settings)
        finally:
            self._request = request

    @classmethod
    def attach(cls, training_job_name: str, sagemaker_session: Any = None, model_channel_name: str = "model") -> Any:
        """Return the estimator of an earlier job, with all of its settings, once the job is over, as SDK v2 does.

        Raises `JobFailedError`.
        """
        del model_channel_name
        estimator = super().attach(training_job_name, asked(sagemaker_session))
        estimator.latest_training_job.wait(logs=False)
        return estimator

    @property
    def _current_job_name(self) -> str | None:
        """The name of the last job, which notebooks read here."""
        return self.jobs[-1].name if self.jobs else None

    @property
    def latest_training_job(self) -> TrainingJob | None:
        """The job of the last `fit` (or `attach`), as SDK v2 shows it; None before the first."""
        return TrainingJob(self.jobs[-1].name, self.jobs[-1]._backend) if self.jobs else None

    @property
    def model_data(self) -> str | None:
        """The address of the last job's model, in a bucket also while the job runs; None before the first."""
        found, place = super().model_data, self.output_path
        if found is None and is_s3(place) and self.jobs and self.jobs[-1].status != FAILED:
            return f"{str(place).rstrip('/')}/{self.jobs[-1].name}/output/model.tar.gz"
        return found

    @property
    def sagemaker_session(self) -> Any:
        """The session that was given; else one that is made at the first use, as SDK v2's constructor does."""
        if self.options.sagemaker_session is not None:
            return self.options.sagemaker_session
        if "_session" not in self.__dict__:
            self._session = sagemaker.Session()
        return self._session

    @property
    def metric_definitions(self) -> list[dict[str, str]]:
        """The metric definitions, as they were given."""
        return [{"Name": one.name, "Regex": one.regex} for one in self.options.metric_definitions or ()]

    @property
    def tags(self) -> list[dict[str, str]] | None:
        """The tags, as SDK v2 keeps them."""
        return tag_list(self.options.tags) or None

    @property
    def training_job_analytics(self) -> Any:
        """The metrics of the last job, as a table; see `sagemaker.analytics.TrainingJobAnalytics`."""
        from sagemaker.analytics import TrainingJobAnalytics

        job = self.latest_training_job
        if job is None:
            raise OptionError("training_job_analytics: this estimator has no job yet; call fit() first")
        names = [one["Name"] for one in self.metric_definitions]
        return TrainingJobAnalytics(job.name, names, self.options.sagemaker_session)

    def training_image_uri(self, region: str | None = None) -> str | None:
        """Return the name of the image; None where the hosts' own Python runs the script."""
        if self.image_uri is None and self._kind in IMAGES and str(self.instance_type).startswith("ml."):
            return image_by_version(
                self._request, region=region or region_of(self.options.sagemaker_session, os.environ)
            )
        return self.image_uri

    def enable_network_isolation(self) -> bool:
        """Say whether the containers have no network."""
        return bool(self.options.enable_network_isolation)

    def get_vpc_config(self, vpc_config_override: Any = None) -> dict[str, list[str]] | None:
        """Return the subnets and security groups."""
        if isinstance(vpc_config_override, dict):
            return vpc_config_override
        if not self.options.subnets:
            return None
        return {"Subnets": list(self.options.subnets), "SecurityGroupIds": list(self.options.security_group_ids or ())}


_absent.refuse_methods(Notebook, _REFUSED)
