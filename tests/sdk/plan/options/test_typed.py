"""SageMaker's keyword arguments: names, types, refusals and their messages."""

from types import SimpleNamespace

import msgspec
import pytest

from herringbone.plan.options.typed import (
    InstanceGroup,
    MetricDefinition,
    Options,
    TensorBoardOutputConfig,
    changed_options,
    parse_options,
)
from herringbone_contract.errors import OptionError, UnsupportedError

# Every name of sagemaker 2.257's EstimatorBase and Framework that a managed-training SDK must or should know.
# The last two lines are our own. Containers on this machine need shm_size and bake_requirements, for which the service
# has no name. min_instance_count and log_policies control how a job restarts on the user's own hosts. include_secrets
# allows files that the SDK holds back. extra_request passes members of the request for which there is no option.
# hang_timeout watches a job while it runs. check_memory lets a job start that is predicted not to fit. gpus is a host's
# claim on a machine that several jobs share, and priority a job's rank in its line. keep_checkpoints bounds a disk that
# the service does not have. notify names who gets word of a job's end, for which the service has events of an account.
# max_cost and dollars_per_hour bound money, idle_timeout an unused machine; check_time is to time what check_memory is.
# drain_notice tells what the service tells its own hosts. retry_without_client keeps a job's machines from deciding
# without the user's own process. kubernetes is to pods what slurm is to nodes. keep_global_batch is for jobs whose
# hosts change in number, which those of the service do not. checkpoint_memory holds memory of hosts.
NAMES = """
    instance_groups max_run max_wait use_spot_instances max_retry_attempts keep_alive_period_in_seconds volume_size
    volume_kms_key training_plan instance_placement_config enable_infra_check enable_remote_debug input_mode model_uri
    model_channel_name checkpoint_s3_uri checkpoint_local_path output_path output_kms_key disable_output_compression
    tensorboard_output_config
    dependencies git_config code_location container_log_level container_entry_point container_arguments environment
    framework_version py_version base_job_name tags metric_definitions track role sagemaker_session
    enable_session_tag_chaining subnets security_group_ids encrypt_inter_container_traffic enable_network_isolation
    training_repository_access_mode training_repository_credentials_provider_arn
shm_size bake_requirements include_secrets extra_request slurm min_instance_count
log_policies fault_policies hang_timeout check_memory gpus priority keep_checkpoints notify
idle_timeout max_cost dollars_per_hour check_time drain_notice loss_spike_factor check_replicas_every
retry_without_client kubernetes keep_global_batch checkpoint_memory
"""


def test_the_list_of_options_is_frozen():
    """A new option must be argued for, not slipped in."""
    assert sorted(Options.__struct_fields__) == sorted(NAMES.split())


def test_defaults_are_those_of_sagemaker():
    options = parse_options({})
    assert (options.max_run, options.volume_size, options.container_log_level) == (86400, 30, 20)
    assert options.input_mode == "File"
    assert changed_options(options) == {}


def test_lists_become_tuples_and_dicts_become_types():
    options = parse_options(
        {
            "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
            "dependencies": ["lib"],
            "instance_groups": [{"instance_group_name": "a", "instance_type": "local_process", "instance_count": 2}],
        }
    )
    assert options.metric_definitions == (MetricDefinition("loss", "loss=([0-9.]+)"),)
    assert options.dependencies == ("lib",)
    assert options.instance_groups == (InstanceGroup("a", "local_process", 2),)


def test_none_means_not_set_as_in_sagemaker():
    assert parse_options({"tags": None, "metric_definitions": None, "dependencies": None}) == parse_options({})


def test_any_object_is_accepted_as_a_session_and_not_stored():
    session = object()
    options = parse_options({"sagemaker_session": session})
    assert options.sagemaker_session is session
    assert changed_options(options) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_runs": 60}, "max_runs: no such option; did you mean max_run?"),
        (
            {"zzz": 1},
            "zzz: no such option; an argument of the script is given as hyperparameters={'zzz': ...}; options are: b",
        ),
        ({"instance_cuont": 1}, "did you mean instance_count?"),
        ({"train_instance_count": 1}, "train_instance_count: renamed in SageMaker's SDK 2; write instance_count"),
        ({"distributions": {}}, "write distribution"),
        ({"max_run": "60"}, "max_run: '60' is no time; give seconds as a number, or text with units: '1h30m', '2d'"),
        ({"max_run": True}, "max_run: expected int, got bool"),
        ({"max_run": 0}, "max_run: expected int >= 1"),
        (
            {"use_spot_instances": "true"},
            "use_spot_instances: expected bool, got str (given: 'true'); write True without quotes",
        ),
        ({"volume_size": "30"}, "volume_size: expected int, got str (given: '30'); write 30 without quotes"),
        ({"input_mode": "Stream"}, "input_mode: 'Stream' is none of 'FastFile', 'File', 'Pipe'"),
        ({"environment": {"A": 1}}, "environment['A']: expected str, got int; write it in quotes"),
        ({"environment": {"B": "", "API_TOKEN": 1}}, "environment['API_TOKEN']: expected str, got int"),
        ({"environment": {1: "1"}}, "environment: a key is wrong: expected str, got int"),
        ({"environment": {"HERRINGBONE_OBSERVER": "no"}}, "environment: HERRINGBONE_OBSERVER is 'no'; use 'off'"),
        ({"environment": ["A"]}, "environment: expected dict, got list"),
        ({"dependencies": "lib"}, "dependencies: expected list, got str (given: 'lib'); write ['lib']"),
        ({"metric_definitions": {"loss": "x"}}, "(given: {'loss': 'x'}); write [{'Name': ..., 'Regex': ...}]"),
        (
            {"metric_definitions": [{"name": "a"}]},
            "metric_definitions[0]: no such key 'name', did you mean 'Name'?; the keys are Name, Regex",
        ),
        ({"slurm": {"acount": "a"}}, "slurm: no such key 'acount', did you mean 'account'?; the keys are account, qos"),
        ({"log_policies": {"x": "e"}}, "log_policies['x']: 'e' is none of 'blame_silent_host', 'exclude_host', 'fail'"),
        ({"keep_checkpoints": {"last": 0}}, "keep_checkpoints.last: expected int >= 1"),
        ({"keep_checkpoints": {"last": 2.0}}, "keep_checkpoints.last: expected int, got float"),
        ({"keep_checkpoints": {"latest": 2}}, "keep_checkpoints: no such key 'latest', did you mean 'last'?"),
        ({"keep_checkpoints": {}}, "keep_checkpoints: says nothing to keep"),
        ({"keep_checkpoints": {"best": 1}}, "keep_checkpoints: best needs metric"),
        ({"keep_checkpoints": {"best": 1, "metric": "a"}}, "keep_checkpoints: best needs objective_type"),
        ({"keep_checkpoints": {"last": 1, "metric": "a"}}, "keep_checkpoints: metric goes with best"),
        (
            {"keep_checkpoints": {"last": 1, "objective_type": "minimize"}},
            "'minimize' is neither Minimize nor Maximize",
        ),
        ({"tags": 3}, "tags: expected dict or list, got int"),
        ({"extra_request": [1]}, "extra_request: expected dict, got list"),
        ({"max_run": "1 h"}, "max_run: '1 h' is no time"),
        ({"max_wait": ""}, "max_wait: '' is no time"),
        ({"environment": {"A B": "1"}}, "'A B' is no variable name"),
        ({"environment": {"A": "x" * 513}}, "A has 513 characters, the service takes 512"),
        ({"environment": {f"A{n}": "" for n in range(101)}}, "101 variables, the service takes 100"),
        ({"metric_definitions": [{"Name": "loss", "Regex": "("}]}, "loss: Regex '(' is no regular expression"),
        ({"metric_definitions": [{"Name": "loss", "Regex": "loss"}]}, "has no group to take the value from"),
        (
            {"metric_definitions": [{"Name": "loss"}]},
            "metric_definitions[0]: the key 'Regex' is missing; the keys are Name, Regex",
        ),
        ({"max_wait": 10, "use_spot_instances": True}, "max_wait: 10 s is less than max_run, 86400 s"),
        (
            {"model_channel_name": "base"},
            "model_channel_name: names the channel of model_uri, and model_uri is missing",
        ),
        ({"subnets": ["a"]}, "subnets, security_group_ids: give both or neither"),
    ],
)
def test_a_wrong_option_is_named_with_the_remedy(options, message):
    with pytest.raises(OptionError) as caught:
        parse_options(options)
    assert message in str(caught.value)


def test_a_secret_in_a_wrong_environment_is_not_shown():
    with pytest.raises(OptionError) as caught:
        parse_options({"environment": {"API_TOKEN": "hunter2", "N": 1}})
    assert "hunter2" not in str(caught.value)


def test_switching_off_a_missing_feature_is_accepted():
    """Old scripts switch off the debugger and the profiler, which Herringbone does not have."""
    assert parse_options({"debugger_hook_config": False, "disable_profiler": True, "rules": []}) == parse_options({})


def test_switching_on_a_missing_feature_is_refused():
    with pytest.raises(UnsupportedError, match="profiler_config: Herringbone does not have this feature"):
        parse_options({"profiler_config": {"x": 1}})


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"ECC (error": "restart"}, r"log_policies: 'ECC \(error' is no regular expression"),
        ({"x*": "restart"}, "log_policies: 'x\\*' matches every line of a log"),
        ({"ECC": "exclude"}, "log_policies.*exclude"),
    ],
)
def test_a_wrong_log_policy_is_refused(policies, message):
    with pytest.raises(OptionError, match=message):
        parse_options({"log_policies": policies})


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("45m", 2700), ("1h", 3600), ("1h30m", 5400), ("2d", 172_800), ("1d1s", 86_401)]
)
def test_times_may_have_units(text, seconds):
    options = parse_options({"max_run": text, "max_wait": "9d", "keep_alive_period_in_seconds": text})
    assert (options.max_run, options.keep_alive_period_in_seconds) == (seconds, seconds)


def test_aws_s_object_for_tensorboard_is_accepted_as_a_dict_is():
    expected = TensorBoardOutputConfig("s3://b/tb", "/opt/ml/output/tensorboard")
    given = SimpleNamespace(s3_output_path="s3://b/tb", container_local_output_path="/opt/ml/output/tensorboard")
    for value in (given, msgspec.structs.asdict(expected), expected):
        assert parse_options({"tensorboard_output_config": value}).tensorboard_output_config == expected
    with pytest.raises(OptionError, match="tensorboard_output_config"):
        parse_options({"tensorboard_output_config": "s3://b/tb"})
