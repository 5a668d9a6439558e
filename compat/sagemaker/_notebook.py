"""The base of the estimators: SDK v2's habits on top of Herringbone's classes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from herringbone import InstanceGroup, OptionError
from herringbone.aws.image_uris import image_uri
from herringbone.plan.frameworks import IMAGES
from sagemaker import _absent

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
}
# What an estimator of SDK v2 has beside training.
_REFUSED = frozenset(
    (
        "compile_model", "create_model", "delete_endpoint", "deploy", "disable_profiling", "disable_remote_debug",
        "enable_default_profiling", "enable_remote_debug", "get_app_url", "get_remote_debug_config",
        "get_session_chaining_config", "latest_job_debugger_artifacts_path", "latest_job_profiler_artifacts_path",
        "latest_job_tensorboard_artifacts_path", "prepare_workflow_for_training", "register", "transformer",
        "update_profiler",
    )
)  # fmt: skip


def on_own_hosts(environ: Mapping[str, str]) -> bool:
    """Say whether the environment sends all jobs to hosts of your own.

    >>> on_own_hosts({"HERRINGBONE_INSTANCE_TYPE": "local_process"}), on_own_hosts({})
    (True, False)
    """
    chosen = environ.get(INSTANCE_TYPE_VARIABLE, "")
    return bool(chosen) and not chosen.startswith("ml.")


def adapted(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return an estimator's keyword arguments with the instance type that the environment names.

    >>> adapted({"instance_type": "ml.p3.2xlarge"}, {"HERRINGBONE_INSTANCE_TYPE": "local_process"})
    {'instance_type': 'local_process'}
    """
    values = {}
    for name, value in options.items():
        if (now := _RENAMED.get(name, name)) != name:
            warnings.warn(f"{name} is {now} since SDK v2", DeprecationWarning, stacklevel=4)
        values[now] = value
    chosen = environ.get(INSTANCE_TYPE_VARIABLE)
    if not chosen:
        return values
    groups = values.get("instance_groups")
    if groups:
        values["instance_groups"] = [
            InstanceGroup(group.instance_group_name, chosen, group.instance_count) for group in groups
        ]
    else:
        values["instance_type"] = chosen
    return values


def base_of(options: Mapping[str, Any]) -> str | None:
    """Return the framework below transformers as AWS's images name it.

    >>> base_of({"pytorch_version": "2.1.0"})
    'pytorch2.1.0'
    """
    for framework in ("pytorch", "tensorflow"):
        if version := options.get(f"{framework}_version"):
            return f"{framework}{version}"
    return None


def region_of(session: Any, environ: Mapping[str, str]) -> str:
    """Return the region of a notebook's jobs: its session's, else that of AWS's variables. Raises `OptionError`."""
    region = getattr(session, "boto_region_name", None) or getattr(session, "region_name", None)
    region = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise OptionError("image_uri: AWS's images are named by region; set AWS_REGION, or give image_uri")
    return str(region)


if TYPE_CHECKING:
    # The class that follows this one in each estimator's bases.
    from herringbone import Estimator as _Base
else:
    _Base = object


class Notebook(_Base):
    """Adapts keyword arguments, and names AWS's image on `ml.*`; the first base of each estimator here."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options = adapted(options, os.environ)
        super().__init__(*arguments, **options)
        framework = IMAGES.get(type(self).__name__)
        kind = str(self.instance_type)
        if self.image_uri is None and framework is not None and kind.startswith("ml."):
            # As SDK v2 does. Herringbone's own classes ask for image_uri there.
            self.image_uri = image_uri(
                framework,
                region=region_of(self.options.sagemaker_session, os.environ),
                version=options.get("transformers_version") or self.options.framework_version,
                py_version=self.options.py_version,
                instance_type=kind,
                base_version=base_of(options),
            )

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise _absent.refusal(f"{type(self).__name__}.{name}")
        return super().__getattr__(name)  # type: ignore[misc]

    @property
    def metric_definitions(self) -> list[dict[str, str]]:
        """The metric definitions, as they were given."""
        return [{"Name": one.name, "Regex": one.regex} for one in self.options.metric_definitions or ()]

    @property
    def tags(self) -> list[dict[str, str]] | None:
        """The tags, as SDK v2 keeps them."""
        return [{"Key": key, "Value": value} for key, value in (self.options.tags or {}).items()] or None

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
        del region
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
