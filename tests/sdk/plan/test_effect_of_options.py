"""Every option of an estimator is used by `local_process`, refused, or named as unused."""

import pytest

from herringbone import Estimator
from herringbone.plan.options.typed import Options
from herringbone_contract.errors import UnsupportedError

# A value of each option that asks for something, for the options that local_process uses: in the job, or in the plan.
EFFECTIVE = {
    *(
        "instance_groups",
        "max_run",
        "max_retry_attempts",
        "input_mode",
        "model_uri",
        "checkpoint_s3_uri",
        "tensorboard_output_config",
        "output_path",
    ),
    *("disable_output_compression", "dependencies", "include_secrets", "git_config", "container_log_level", "tags"),
    *(
        "hang_timeout",
        "fault_policies",
        "check_memory",
        "check_time",
        "environment",
        "base_job_name",
        "metric_definitions",
        "track",
    ),
    *("gpus", "code_location", "keep_checkpoints", "notify", "idle_timeout", "max_cost", "dollars_per_hour"),
    *("drain_notice", "loss_spike_factor", "check_replicas_every", "enable_infra_check"),
}
# Options that say how another option works; test_options.py tests that they are refused without it.
NEED_ANOTHER = {"checkpoint_memory", "keep_global_batch", "log_policies", "min_instance_count", "model_channel_name"}
ASKING = {
    "fault_policies": {"hang": "report"},
    "checkpoint_local_path": "/ckpt",
    "volume_size": 100,
    "extra_request": {"A": 1},
    "slurm": {"account": "a"},
    "kubernetes": {"cpu": 2},
    "instance_placement_config": {"A": 1},
    "subnets": ["a"],
    "security_group_ids": ["b"],
    "max_wait": 90_000,
    "priority": 5,
    "keep_alive_period_in_seconds": 60,
    "container_entry_point": ["a"],
    "container_arguments": ["a"],
    "training_repository_access_mode": "Vpc",
    "shm_size": "1g",
    "sagemaker_session": object(),
}
TEXTS = (
    "volume_kms_key",
    "output_kms_key",
    "training_plan",
    "framework_version",
    "py_version",
    "role",
)


@pytest.mark.parametrize("name", sorted(set(Options.__struct_fields__) - EFFECTIVE - NEED_ANOTHER))
def test_each_option_is_used_refused_or_named_as_unused(tmp_path, monkeypatch, name):
    """A new option fails here until it is in one of the three lists."""
    text = name in TEXTS or name.endswith("_arn")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    options = {name: ASKING.get(name, "text" if text else True)}
    if name in ("subnets", "security_group_ids"):
        options = {key: ASKING[key] for key in ("subnets", "security_group_ids")}
    try:
        unused = Estimator("train.py", instance_type="local_process", **options).plan().unused
    except UnsupportedError as error:
        unused = str(error)
    assert name in unused
