"""The whole plan of a job compared with one literal, and the rules that concern several arguments."""

from pathlib import Path

import msgspec
import pytest
from tests.plans import plan_of

from herringbone.backends.process.review import review
from herringbone.plan.inputs import TrainingInput
from herringbone.plan.plan import parse_plan
from herringbone.plan.request import changed, make_request
from herringbone_contract.distribution import parse
from herringbone_contract.errors import (
    DistributionError,
    HyperparameterError,
    InputError,
    OptionError,
    UnsupportedError,
)

HOME = Path("/home/me")
SPLIT_IN_TWO = {
    "smdistributed": {
        "modelparallel": {
            "enabled": True,
            "parameters": {"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "optimize": "memory"},
        }
    },
    "mpi": {"enabled": True, "processes_per_host": 2},
}


def request(distribution=None, *, kind="PyTorch", count=1, hyperparameters=None, type_="local_process", **options):
    hosts = {} if "instance_groups" in options else {"instance_type": type_, "instance_count": count}
    given = {"entry_point": "train.py", "source_dir": "src", "hyperparameters": hyperparameters}
    return make_request(kind, {**given, "distribution": distribution, **hosts, **options})


def plan(distribution=None, inputs=None, **options):
    return plan_of(request(distribution, **options), HOME, inputs=inputs, backend="local_process")


# The members of a stored plan that this job does not need.
NOTHING = {"unused": [], "fewer_hosts": [], "request": None, "code": None, "made_name": False, "warnings": []}
NOTHING |= {"prediction": None, "queue": False}


ARGUMENTS = {"entry_point": "train.py", "source_dir": "/home/me/src"}
ARGUMENTS |= {"instance_type": "local_process", "instance_count": 2}
ARGUMENTS |= {"hyperparameters": {"epochs": 3, "name": "run"}}


def test_the_whole_plan_of_a_job():
    job_plan = plan(
        SPLIT_IN_TWO,
        {"training": "file://data", "test": TrainingInput("/data/test", "ShardedByS3Key", content_type="text/csv")},
        count=2,
        hyperparameters={"epochs": 3, "name": "run"},
        role="arn:role",
        environment={"WANDB_API_KEY": "hunter2", "MODE": "fast"},
        metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    )
    host = {"instance_type": "local_process", "group": "homogeneousCluster", "ranks": 2, "helper": False}
    assert job_plan.to_dict() == {
        "job_name": "digits-1",
        "backend": "local_process",
        "estimator": "PyTorch",
        "launcher": "mpi",
        "distribution": {
            "smdistributed": {
                "modelparallel": {
                    "enabled": True,
                    "parameters": {"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "optimize": "memory"},
                }
            },
            "mpi": {"enabled": True, "processes_per_host": 2},
        },
        "hosts": [{"name": "algo-1", **host}, {"name": "algo-2", **host}],
        "source": {"entry_point": "train.py", "folder": "/home/me/src", "whole_folder": True},
        "channels": [
            {
                "name": "test",
                "input": {"s3_data": "/data/test", "distribution": "ShardedByS3Key", "content_type": "text/csv"},
                "path": "/data/test",
            },
            {"name": "training", "input": {"s3_data": "file://data"}, "path": "/home/me/data"},
        ],
        "hyperparameters": {
            "epochs": "3",
            "name": '"run"',
            "mp_parameters": '{"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "optimize": "memory"}',
            "sagemaker_distributed_dataparallel_enabled": "false",
            "sagemaker_instance_type": '"local_process"',
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "2",
            "sagemaker_mpi_custom_mpi_options": '""',
            "sagemaker_submit_directory": '"file:///home/me/src"',
            "sagemaker_program": '"train.py"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"digits-1"',
        },
        "options": {
            "role": "arn:role",
            "environment": {"WANDB_API_KEY": "******", "MODE": "fast"},
            "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        },
        "folder": "/home/me",
        "arguments": {**ARGUMENTS, "distribution": SPLIT_IN_TWO},
        **NOTHING,
    }


HELPED = {"smdistributed": {"dataparallel": {"enabled": True, "helpers": "cpu"}}}


def groups(gpus, cpus):
    kinds = {"gpu": ("ml.p4d.24xlarge", gpus), "cpu": ("ml.c5n.18xlarge", cpus)}
    return [
        {"instance_group_name": name, "instance_type": type_, "instance_count": n} for name, (type_, n) in kinds.items()
    ]


def test_hosts_of_the_helper_group_have_no_ranks():
    job_plan = plan(HELPED, instance_groups=groups(2, 2))
    assert [(host.name, host.ranks, host.helper) for host in job_plan.hosts] == [
        ("algo-1", None, False),
        ("algo-2", None, False),
        ("algo-3", 0, True),
        ("algo-4", 0, True),
    ]
    assert job_plan.hyperparameters["sagemaker_distribution_instance_groups"] == '["gpu"]'
    assert job_plan.hyperparameters["sagemaker_distributed_dataparallel_parameters"] == '{"helpers": "cpu"}'
    assert job_plan.hyperparameters["sagemaker_instance_type"] == '"ml.p4d.24xlarge"'
    assert "host algo-3:       helper, sums gradients, group cpu" in str(job_plan).splitlines()
    assert parse_plan(job_plan.to_dict()).hosts == job_plan.hosts


def test_channels_go_to_the_training_hosts_unless_they_name_groups():
    inputs = {
        "training": TrainingInput("/data", "ShardedByS3Key"),
        "all": TrainingInput("/data", instance_groups=("gpu", "cpu")),
    }
    job_plan = plan(HELPED, inputs, instance_groups=groups(2, 2))
    assert [(channel.name, channel.input.instance_groups) for channel in job_plan.channels] == [
        ("all", ("gpu", "cpu")),
        ("training", ("gpu",)),
    ]
    with pytest.raises(
        InputError, match="channel 'training': instance_groups: the job has no group gpus; it has: gpu, cpu"
    ):
        plan(HELPED, TrainingInput("/data", instance_groups=("gpus",)), instance_groups=groups(2, 2))


@pytest.mark.parametrize(
    ("gpus", "cpus", "advice"),
    [
        (2, 2, None),
        (2, 3, "3 helper hosts for 2 that train: those beyond 2 bring nothing"),
        (1, 1, "one host trains, so no gradients cross the network"),
    ],
)
def test_useless_helpers_give_advice_and_no_error(gpus, cpus, advice):
    job_plan = plan(HELPED, instance_groups=groups(gpus, cpus))
    if advice is None:
        assert job_plan.advice is None
        assert "advice:" not in str(job_plan)
    else:
        assert job_plan.advice.startswith(advice)
        assert f"advice:            {advice}" in str(job_plan)


def test_the_model_is_the_last_channel_of_the_plan():
    job_plan = plan(None, {"a": "/x", "z": "/y"}, model_uri="m.tar.gz", model_channel_name="base")
    assert [(channel.name, channel.path) for channel in job_plan.channels] == [
        ("a", "/x"),
        ("z", "/y"),
        ("base", "/home/me/m.tar.gz"),
    ]


def test_helpers_get_the_model_and_no_data():
    job_plan = plan(HELPED, {"a": "/x"}, instance_groups=groups(2, 2), model_uri="/m")
    assert [channel.input.instance_groups for channel in job_plan.channels] == [("gpu",), None]


@pytest.mark.parametrize(
    "distribution",
    [SPLIT_IN_TWO, {"torch_distributed": {"enabled": True}}, {"parameter_server": {"enabled": True}}, None],
)
def test_the_distribution_of_a_stored_plan_is_typed(distribution):
    job_plan = plan(distribution, kind="Estimator")
    assert parse_plan(job_plan.to_dict()).distribution == parse(distribution)


def test_mpi_next_to_data_parallel_sets_the_number_of_ranks():
    strategies = {
        "smdistributed": {"dataparallel": {"enabled": True}},
        "mpi": {"enabled": True, "processes_per_host": 2},
    }
    job_plan = plan(strategies)
    assert (job_plan.launcher, job_plan.hosts[0].ranks) == ("data_parallel", 2)


def test_a_stored_plan_is_read_back_whole():
    job_plan = plan(
        SPLIT_IN_TWO, {"a": TrainingInput("/x", "ShardedByS3Key")}, environment={"MODE": "fast"}, tags={"a": "b"}
    )
    assert parse_plan(job_plan.to_dict()) == job_plan
    assert parse_plan(msgspec.json.decode(msgspec.json.encode(job_plan.to_dict()))) == job_plan


def test_torch_distributed_leaves_the_count_to_the_host():
    assert [host.ranks for host in plan({"torch_distributed": {"enabled": True}}, count=2).hosts] == [None, None]


def test_groups_of_hosts_are_numbered_through():
    groups = [
        {"instance_group_name": "train", "instance_type": "local_process", "instance_count": 1},
        {"instance_group_name": "help", "instance_type": "local_process", "instance_count": 2},
    ]
    mpi = {"mpi": {"enabled": True, "processes_per_host": 2}, "instance_groups": ["train"]}
    hosts = plan(mpi, instance_groups=groups).hosts
    assert [(host.name, host.group, host.ranks) for host in hosts] == [
        ("algo-1", "train", 2),
        ("algo-2", "help", 0),
        ("algo-3", "help", 0),
    ]


def test_partitions_must_divide_the_ranks():
    uneven = {**SPLIT_IN_TWO, "mpi": {"enabled": True, "processes_per_host": 3}}
    with pytest.raises(DistributionError, match=r"2 does not divide 3 ranks\..*\(1 hosts x 3 processes_per_host\)"):
        plan(uneven)
    assert len(plan(uneven, count=2).hosts) == 2


def test_a_hyperparameter_that_cannot_be_encoded_is_named():
    with pytest.raises(HyperparameterError, match="hyperparameter 'model' cannot be encoded"):
        plan(hyperparameters={"model": object()})
    with pytest.raises(HyperparameterError, match="'long' has 2502 characters as JSON"):
        plan(hyperparameters={"long": "x" * 2500})


def test_added_hyperparameters_count_towards_the_limit():
    plan(hyperparameters={f"h{number}": number for number in range(96)})
    with pytest.raises(HyperparameterError, match="101 hyperparameters; the service takes 100"):
        plan(hyperparameters={f"h{number}": number for number in range(97)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "instance_count: expected int >= 1"),
        ({"count": True}, "instance_count: expected int, got bool"),
        ({"count": "2"}, "instance_count: expected int, got str"),
        ({"type_": None}, "instance_type: missing"),
        ({"instance_groups": []}, "instance_groups: names must be given once each"),
    ],
)
def test_impossible_hosts_are_refused(options, message):
    with pytest.raises(OptionError) as caught:
        plan(**options)
    assert message in str(caught.value)


# The review of a plan by local_process.


@pytest.fixture
def folder(tmp_path):
    """A folder with the script and the data that the plans name."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("")
    (tmp_path / "data").mkdir()
    return tmp_path


def reviewed(folder, distribution=None, inputs=None, **options):
    return review(plan_of(request(distribution, **options), folder, inputs=inputs, backend="local_process"))


def test_what_is_in_a_bucket_is_left_to_the_review_of_s3(folder):
    asked = changed(request(), {"source_dir": "s3://b/c.tar.gz"})
    assert review(plan_of(asked, folder)) == ()
    assert reviewed(folder, inputs="s3://b/data", output_path="s3://b/o", sagemaker_session=object()) == ()


def test_options_without_effect_are_named(folder):
    unused = reviewed(
        folder, inputs="data", role="r", volume_size=100, use_spot_instances=True, max_run=5, tags={"a": "b"}
    )
    assert unused == ("role", "use_spot_instances", "volume_size")
    assert reviewed(folder, sagemaker_session=object()) == ("sagemaker_session",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_network_isolation": True}, "enable_network_isolation: processes of this machine share its network"),
        ({"encrypt_inter_container_traffic": True}, "encrypt_inter_container_traffic: hosts here"),
        ({"output_kms_key": "k"}, "output_kms_key: the model is not encrypted"),
        ({"checkpoint_local_path": "/ckpt"}, "only /opt/ml/checkpoints is served here, not /ckpt"),
        ({"output_path": "gs://b/o"}, "output_path: gs://b/o is not on this machine"),
        ({"checkpoint_s3_uri": "gs://b/o"}, "checkpoint_s3_uri: gs://b/o is not on this machine"),
        ({"tensorboard_output_config": {"s3_output_path": "s3://b/tb"}}, "_config: s3://b/tb is not on this machine"),
        (
            {"tensorboard_output_config": {"s3_output_path": "tb", "container_local_output_path": "/tb"}},
            "served as /opt/ml/output/tensorboard only here, not as /tb",
        ),
        ({"model_uri": "gs://b/m"}, "channel 'model': gs://b/m is not on this machine"),
        (
            {"inputs": "gs://b/data"},
            "channel 'training': gs://b/data is not on this machine, and local_process fetches no such",
        ),
        (
            {"inputs": TrainingInput("s3://b/m", s3_data_type="AugmentedManifestFile")},
            "channel training: an AugmentedManifestFile is read in Pipe mode",
        ),
        ({"inputs": TrainingInput("data", s3_data_type="ManifestFile")}, "channel training: a ManifestFile lists"),
        ({"inputs": TrainingInput("data", compression="Gzip")}, "channel training: compression='Gzip' is for Pipe"),
        (
            {"distribution": {"pytorchxla": {"enabled": True}}},
            "distribution.pytorchxla: Herringbone starts no PyTorch/XLA",
        ),
    ],
)
def test_options_that_are_not_served_are_refused_by_name(folder, options, message):
    with pytest.raises(UnsupportedError) as caught:
        reviewed(folder, **options)
    assert message in str(caught.value)


def test_all_refusals_come_at_once(folder):
    with pytest.raises(UnsupportedError) as caught:
        reviewed(folder, enable_network_isolation=True, output_kms_key="k")
    assert "enable_network_isolation" in str(caught.value)
    assert "output_kms_key" in str(caught.value)


def test_missing_files_are_named(folder):
    with pytest.raises(InputError, match=r"channel 'training': .*/gone: no such file or folder"):
        reviewed(folder, inputs="gone")
    (folder / "src/train.py").unlink()
    message = r"entry_point: .*/src/train.py: no such file \(entry_point counts from source"
    with pytest.raises(InputError, match=message):
        reviewed(folder)


@pytest.mark.filterwarnings("error")
def test_a_syntax_error_is_found_before_the_start(folder):
    (folder / "src/train.py").write_text("x = 'a\\d'\ndef f(:\n")
    message = r"entry_point: .*/src/train.py, line 2: SyntaxError: .*: def f\(:"
    with pytest.raises(InputError, match=message):
        reviewed(folder)


def test_two_channels_of_one_name(folder):
    with pytest.raises(InputError, match="channel 'model': given in inputs and by model_uri"):
        reviewed(folder, inputs={"model": "data"}, model_uri="data")


def test_fewer_hosts_are_counts_for_which_a_layout_exists():
    assert plan(count=4, min_instance_count=2).fewer_hosts == (3, 2)
    assert plan(count=4).fewer_hosts == ()
    library = {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}
    halves = {"smdistributed": library, "mpi": {"enabled": True, "processes_per_host": 1}}
    assert plan(halves, count=6, min_instance_count=2).fewer_hosts == (4, 2)
    with pytest.raises(DistributionError, match="min_instance_count: 1: "):
        plan(halves, count=4, min_instance_count=1)
    with pytest.raises(OptionError, match="min_instance_count: 3 is more than instance_count, 2"):
        plan(count=2, min_instance_count=3)


@pytest.mark.parametrize("distribution", [SPLIT_IN_TWO, {"torch_distributed": {"enabled": True}}, None])
def test_a_plan_of_an_earlier_version_has_its_distribution_as_hyperparameters_only(distribution):
    job_plan = plan(distribution)
    stored = job_plan.to_dict()
    del stored["distribution"]
    assert parse_plan({**stored, "launcher": job_plan.launcher}) == job_plan
