"""Hyperparameters as they travel: golden encodings, limits, and texts of other tools."""

import pytest

from herringbone_contract.distribution import Distribution, parse
from herringbone_contract.errors import DistributionError, HyperparameterError
from herringbone_contract.hyperparameters import decode, decode_values, encode, encode_values, split

ON = {"enabled": True}


@pytest.mark.parametrize(
    ("raw", "golden"),
    [
        ({}, {}),
        (
            {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x A=1 --verbose"}},
            {
                "sagemaker_mpi_enabled": "true",
                "sagemaker_mpi_num_of_processes_per_host": "8",
                "sagemaker_mpi_custom_mpi_options": '"-x A=1 --verbose"',
            },
        ),
        ({"mpi": {"enabled": False}}, {"sagemaker_mpi_enabled": "false", "sagemaker_mpi_custom_mpi_options": '""'}),
        (
            {
                "smdistributed": {
                    "modelparallel": {
                        "enabled": True,
                        "parameters": {"partitions": 2, "microbatches": 4, "memory_weight": 0.5, "ddp": True},
                    }
                },
                "mpi": {"enabled": True, "processes_per_host": 2},
            },
            {
                "sagemaker_mpi_enabled": "true",
                "sagemaker_mpi_num_of_processes_per_host": "2",
                "sagemaker_mpi_custom_mpi_options": '""',
                "mp_parameters": '{"partitions": 2, "microbatches": 4, "ddp": true, "memory_weight": 0.5}',
                "sagemaker_distributed_dataparallel_enabled": "false",
                "sagemaker_instance_type": '"ml.p3.16xlarge"',
            },
        ),
        (
            {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-verbose"}}},
            {
                "sagemaker_distributed_dataparallel_enabled": "true",
                "sagemaker_distributed_dataparallel_custom_mpi_options": '"-verbose"',
                "sagemaker_instance_type": '"ml.p3.16xlarge"',
            },
        ),
        (
            {
                "smdistributed": {
                    "dataparallel": {
                        "enabled": True,
                        "rails": ["eth0", "eth1"],
                        "wire": "fp16",
                        "helpers": "cpus",
                        "aggregation_frequency": 4,
                    }
                },
                "instance_groups": ["gpus"],
            },
            {
                "sagemaker_distributed_dataparallel_enabled": "true",
                "sagemaker_distributed_dataparallel_custom_mpi_options": '""',
                "sagemaker_distributed_dataparallel_parameters": (
                    '{"helpers": "cpus", "aggregation_frequency": 4, "wire": "fp16", "rails": ["eth0", "eth1"]}'
                ),
                "sagemaker_instance_type": '"ml.p3.16xlarge"',
                "sagemaker_distribution_instance_groups": '["gpus"]',
            },
        ),
        (
            {"torch_distributed": ON},
            {"sagemaker_torch_distributed_enabled": "true", "sagemaker_instance_type": '"ml.p3.16xlarge"'},
        ),
        (
            {
                "torch_distributed": ON,
                "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 8}}},
            },
            {
                "sagemaker_torch_distributed_enabled": "true",
                "mp_parameters": '{"hybrid_shard_degree": 8}',
                "sagemaker_distributed_dataparallel_enabled": "false",
                "sagemaker_instance_type": '"ml.p3.16xlarge"',
            },
        ),
        (
            {"pytorchddp": ON},
            {"sagemaker_pytorch_ddp_enabled": "true", "sagemaker_instance_type": '"ml.p3.16xlarge"'},
        ),
        ({"parameter_server": ON}, {"sagemaker_parameter_server_enabled": "true"}),
        ({"multi_worker_mirrored_strategy": ON}, {"sagemaker_multi_worker_mirrored_strategy_enabled": "true"}),
        ({"pytorchxla": ON}, {"sagemaker_pytorch_xla_multi_worker_enabled": "true"}),
        (
            {"parameter_server": ON, "instance_groups": ["gpus", "cpus"]},
            {
                "sagemaker_parameter_server_enabled": "true",
                "sagemaker_distribution_instance_groups": '["gpus", "cpus"]',
            },
        ),
        ({"torch_distributed": {"enabled": False}, "pytorchddp": {"enabled": False}}, {}),
    ],
)
def test_golden_encodings(raw, golden):
    distribution = parse(raw)
    assert encode(distribution, instance_type="ml.p3.16xlarge") == golden
    assert decode(golden) == distribution


def test_decode_finds_the_distribution_among_everything_else():
    hyperparameters = {
        "epochs": "3",
        "sagemaker_program": '"train.py"',
        "sagemaker_instance_type": '"local_process"',
        "sagemaker_mpi_enabled": "true",
    }
    assert decode(hyperparameters) == parse({"mpi": ON})
    assert decode({"epochs": "3"}) == Distribution()


def test_decode_refuses_mistakes_that_aws_s_sdk_lets_through():
    """Refuse in the container mistakes that AWS's SDK lets through: a wrong key, or a missing MPI."""
    misspelt = {"mp_parameters": '{"partitons": 2}', "sagemaker_mpi_enabled": "true"}
    with pytest.raises(DistributionError, match="Did you mean 'partitions'"):
        decode(misspelt)
    with pytest.raises(DistributionError, match="it runs under MPI"):
        decode({"mp_parameters": '{"partitions": 2}'})


@pytest.mark.parametrize("text", ['"/etc/passwd"', "/etc/passwd", "[]", "{"])
def test_mp_parameters_from_the_wire_is_never_a_path(text):
    """Refuse a path as `parameters`: a hyperparameter must not choose a file of the container."""
    with pytest.raises(HyperparameterError, match="'mp_parameters' is not a JSON object"):
        decode({"mp_parameters": text, "sagemaker_mpi_enabled": "true"})


def test_data_parallel_s_parameters_from_the_wire_are_checked_like_a_user_s():
    on = {"sagemaker_distributed_dataparallel_enabled": "true"}
    with pytest.raises(HyperparameterError, match="'sagemaker_distributed_dataparallel_parameters' is not a JSON obj"):
        decode({**on, "sagemaker_distributed_dataparallel_parameters": '"helpers"'})
    with pytest.raises(DistributionError, match="Did you mean 'helpers'"):
        decode({**on, "sagemaker_distributed_dataparallel_parameters": '{"helper": "cpus"}'})
    with pytest.raises(DistributionError, match="'enabled' is missing"):
        decode({"sagemaker_distributed_dataparallel_parameters": '{"helpers": "cpus"}'})


def test_decode_of_a_switch_that_is_no_boolean():
    with pytest.raises(DistributionError, match=r"distribution\.mpi\.enabled: .* Got 'True' \(str\)"):
        decode({"sagemaker_mpi_enabled": "True"})


def test_values_travel_as_json():
    values = {"a": 1, "b": 0.1, "c": "text", "d": True, "e": None, "f": [1, "x"], "g": {"k": 2}, "h": "1", "i": "é"}
    encoded = encode_values(values)
    assert encoded == {
        "a": "1",
        "b": "0.1",
        "c": '"text"',
        "d": "true",
        "e": "null",
        "f": '[1, "x"]',
        "g": '{"k": 2}',
        "h": '"1"',
        "i": '"\\u00e9"',
    }
    assert decode_values(encoded) == values


def test_bare_text_of_other_tools_stays_text():
    assert decode_values({"name": "run-1", "rate": "0.1", "flag": "True", "empty": ""}) == {
        "name": "run-1",
        "rate": 0.1,
        "flag": "True",
        "empty": "",
    }


def cyclic():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        ({1, 2}, "Object of type set is not JSON serializable"),
        (object(), "turn a object into one first"),
        (b"x", "Object of type bytes"),
        (cyclic(), "Circular reference"),
    ],
)
def test_a_value_that_cannot_be_encoded(value, phrase):
    with pytest.raises(HyperparameterError, match="hyperparameter 'rate' cannot be encoded") as caught:
        encode_values({"epochs": 1, "rate": value})
    assert phrase in str(caught.value)


def test_the_limits_of_the_service():
    assert len(encode_values({"x": "a" * 2_498})["x"]) == 2_500
    with pytest.raises(HyperparameterError, match=r"'x' has 2501 characters as JSON; the service takes 2500"):
        encode_values({"x": "a" * 2_499})
    assert len(encode_values({f"x{number}": number for number in range(100)})) == 100
    with pytest.raises(HyperparameterError, match="101 hyperparameters; the service takes 100"):
        encode_values({f"x{number}": number for number in range(101)})
    assert encode_values({"x" * 256: 1})
    with pytest.raises(HyperparameterError, match="its name has 257 characters; the service takes 256"):
        encode_values({"x" * 257: 1})
    for name in ("", 3):
        with pytest.raises(HyperparameterError, match="a name is a text of at least one character"):
            encode_values({name: 1})


def test_parameters_of_modelparallel_are_one_value_and_have_its_limit():
    raw = {
        "smdistributed": {
            "modelparallel": {"enabled": True, "parameters": {"partitions": 2, "partition_file": "x" * 2_500}}
        },
        "mpi": ON,
    }
    with pytest.raises(HyperparameterError, match=r"'mp_parameters' has 2539 characters"):
        encode(parse(raw), instance_type="local_process")


def test_split():
    user, steering = split({"epochs": "3", "mp_parameters": "{}", "model_dir": '"m"', "sagemaker_region": '"r"'})
    assert user == {"epochs": "3", "mp_parameters": "{}", "model_dir": '"m"'}
    assert steering == {"sagemaker_region": '"r"'}


def test_the_metric_that_sagemaker_adds_to_a_trial_is_not_for_the_script():
    user, steering = split({"lr": "0.1", "_tuning_objective_metric": "accuracy"})
    assert (user, steering) == ({"lr": "0.1"}, {"_tuning_objective_metric": "accuracy"})
