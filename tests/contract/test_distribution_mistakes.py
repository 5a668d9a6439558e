"""Each mistake in a `distribution`, with its message."""

import json
import re

import pytest

from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError

MPI = {"enabled": True, "processes_per_host": 2}
ON = {"enabled": True}
PARAMETERS = "distribution.smdistributed.modelparallel.parameters"


def model_parallel(**parameters):
    return {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}, "mpi": MPI}


def message(raw, framework=None):
    with pytest.raises(DistributionError) as caught:
        parse(raw, framework=framework)
    return str(caught.value)


@pytest.mark.parametrize(
    ("raw", "start", "rest"),
    [
        (
            {"smdistribute": {"dataparallel": ON}},
            "distribution.smdistribute: no such key. Did you mean 'smdistributed'?",
            "Legal keys here: smdistributed, mpi, parameter_server, multi_worker_mirrored_strategy, pytorchddp,"
            " torch_distributed, pytorchxla, instance_groups.",
        ),
        (
            {"smdistributed": {"datparallel": ON}},
            "distribution.smdistributed.datparallel: Invalid smdistributed strategy provided: datparallel."
            " Did you mean 'dataparallel'?",
            "Legal keys here: dataparallel, modelparallel.",
        ),
        (
            {"mpi": {"enabled": True, "process_per_host": 8}},
            "distribution.mpi.process_per_host: no such key. Did you mean 'processes_per_host'?",
            "Legal keys here: enabled, processes_per_host, custom_mpi_options.",
        ),
        (model_parallel(partitons=2), f"{PARAMETERS}.partitons: no such key. Did you mean 'partitions'?", "sdp_"),
        ({"horovod": ON}, "distribution.horovod: Horovod runs under mpi: write 'mpi': {'enabled': True,", "N}."),
    ],
)
def test_unknown_key(raw, start, rest):
    assert message(raw).startswith(start)
    assert rest in message(raw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("mpi", "distribution: a dictionary is expected here. Got 'mpi' (str)."),
        ({1: {}}, "distribution: keys are strings. Got the key 1 (int)."),
        ({"mpi": True}, "distribution.mpi: a dictionary is expected here. Got True (bool)."),
        ({"mpi": None}, "distribution.mpi: a dictionary is expected here. Got None (NoneType)."),
        (
            {"smdistributed": ["dataparallel"]},
            "distribution.smdistributed: smdistributed strategy requires a dictionary. Got ['dataparallel'] (list).",
        ),
        (
            {"mpi": {"enabled": "true"}},
            "distribution.mpi.enabled: enabled must be a value in: [True, False]. Got 'true' (str)."
            " Write True without quotes.",
        ),
        ({"mpi": {"enabled": 1}}, "distribution.mpi.enabled: enabled must be a value in: [True, False]. Got 1 (int)."),
        (
            {"mpi": {"enabled": True, "processes_per_host": True}},
            "distribution.mpi.processes_per_host: processes_per_host must be a positive integer. Got True (bool).",
        ),
        (
            {"mpi": {"enabled": True, "processes_per_host": 0}},
            "distribution.mpi.processes_per_host: processes_per_host must be a positive integer. Got 0 (int).",
        ),
        (
            {"mpi": {"enabled": True, "custom_mpi_options": ["-x", "A"]}},
            "distribution.mpi.custom_mpi_options: custom_mpi_options must be a string. Got ['-x', 'A'] (list).",
        ),
        (
            {"mpi": ON, "instance_groups": "gpus"},
            "distribution.instance_groups: a list of instance groups, or of their names, is expected."
            " Got 'gpus' (str).",
        ),
        (
            {"mpi": ON, "instance_groups": [1]},
            "distribution.instance_groups: an instance group, or its name, is expected. Got 1 (int).",
        ),
    ],
)
def test_wrong_type(raw, expected):
    assert message(raw) == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("partitions", True, "The number of partitions must be a positive integer. Got True (bool)."),
        (
            "partitions",
            "2",
            "The number of partitions must be a positive integer. Got '2' (str). Write 2 without quotes.",
        ),
        ("partitions", 2.0, "The number of partitions must be a positive integer. Got 2.0 (float)."),
        ("partitions", None, "The number of partitions must be a positive integer. Got None (NoneType)."),
        ("microbatches", 0, "The number of microbatches must be a positive integer. Got 0 (int)."),
        ("active_microbatches", -1, "The number of active_microbatches must be a positive integer. Got -1 (int)."),
        (
            "pipeline",
            "gpipe",
            "pipeline must be a value in: ['_only_forward', 'interleaved', 'simple', 'zero_bubble']."
            " Got 'gpipe' (str).",
        ),
        ("optimize", "space", "optimize must be a value in: ['memory', 'speed']. Got 'space' (str)."),
        (
            "placement_strategy",
            "PPT",
            "placement_strategy must be a value in: ['DPT', 'DTP', 'PDT', 'PTD', 'TDP', 'TPD', 'cluster', 'spread']."
            " Got 'PPT' (str).",
        ),
        ("ddp", "true", "ddp must be a value in: [True, False]. Got 'true' (str). Write True without quotes."),
        ("auto_partition", 0, "auto_partition must be a value in: [True, False]. Got 0 (int)."),
        ("default_partition", -1, "default_partition must be an integer of at least 0. Got -1 (int)."),
        ("memory_weight", 1.5, "memory_weight must be between 0.0 and 1.0! Got 1.5 (float)."),
        ("memory_weight", "half", "memory_weight must be between 0.0 and 1.0! Got 'half' (str)."),
        ("memory_weight", float("nan"), "memory_weight must be between 0.0 and 1.0! Got nan (float)."),
        ("ddp_port", -1, "Invalid port number -1. It must be an integer from 0 to 65535. Got -1 (int)."),
        ("ddp_port", 65_536, "Invalid port number 65536. It must be an integer from 0 to 65535. Got 65536 (int)."),
        ("ddp_dist_backend", "mpi", "ddp_dist_backend must be a value in: ['auto', 'gloo', 'nccl']. Got 'mpi' (str)."),
        ("partition_file", 3, "'partition_file' must be a str. Got 3 (int)."),
        ("sdp_gradient_clipping", -1.0, "sdp_gradient_clipping must be a number of at least 0.0. Got -1.0 (float)."),
        (
            "sdp_gradient_clipping",
            float("inf"),
            "sdp_gradient_clipping must be a number of at least 0.0. Got inf (float).",
        ),
        (
            "sdp_gradient_clipping",
            float("nan"),
            "sdp_gradient_clipping must be a number of at least 0.0. Got nan (float).",
        ),
        ("sdp_reduce_bucket_size", 5e8, "sdp_reduce_bucket_size must be a positive integer. Got 500000000.0 (float)."),
    ],
)
def test_wrong_value_of_a_parameter(key, value, expected):
    assert message(model_parallel(**{"partitions": 2, "ddp": True} | {key: value})) == f"{PARAMETERS}.{key}: {expected}"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("helper", "cpus", "no such key. Did you mean 'helpers'?"),
        ("helpers", "", "an instance group, or its name, is expected. Got '' (str)."),
        ("helpers", ["cpus"], "an instance group, or its name, is expected. Got ['cpus'] (list)."),
        ("aggregation_frequency", 0, "aggregation_frequency must be a positive integer. Got 0 (int)."),
        ("aggregation_frequency", True, "aggregation_frequency must be a positive integer. Got True (bool)."),
        (
            "average_aggregated_gradients",
            "no",
            "average_aggregated_gradients must be a value in: [True, False]. Got 'no' (str).",
        ),
        (
            "average_aggregated_gradients",
            False,
            "applies to gradients that aggregation_frequency adds up",
        ),
        ("wire", "fp8", "wire must be a value in: [None, 'fp16', 'bf16']. Got 'fp8' (str)."),
        ("wire", 16, "wire must be a value in: [None, 'fp16', 'bf16']. Got 16 (int)."),
        ("rails", "eth0", "a list of names of network interfaces is expected. Got 'eth0' (str)."),
        ("rails", [], "a list of names of network interfaces is expected. Got [] (list)."),
        ("rails", [0], "a list of names of network interfaces is expected. Got [0] (list)."),
        ("rails", ["eth0", "10.0.0.0/8"], "'10.0.0.0/8' is no name of a network interface;"),
        ("rails", ["a-name-of-16-chr"], "'a-name-of-16-chr' is no name of a network interface;"),
        ("rails", ["fabric:"], "'fabric:' is no name of a network interface;"),
        ("rails", ["eth0", "fabric:efa"], "either all rails go over libfabric or none does."),
        ("rails", ["eth0", "eth0"], "each interface can be named once. Got ['eth0', 'eth0'] (list)."),
    ],
)
def test_wrong_value_of_data_parallel(key, value, expected):
    raw = {"smdistributed": {"dataparallel": {**ON, key: value}}}
    assert message(raw).startswith(f"distribution.smdistributed.dataparallel.{key}: {expected}")


def test_our_additional_keys_are_illegal_in_pytorchddp():
    assert "distribution.pytorchddp.helpers: no such key" in message(
        {"pytorchddp": {**ON, "helpers": "cpus"}}, framework="pytorch"
    )


def test_a_long_value_is_cut_in_the_message():
    assert message({"mpi": list(range(1000))}).endswith("... (list).")
    assert len(message({"mpi": list(range(1000))})) < 200


@pytest.mark.parametrize(
    ("parameters", "phrases"),
    [
        ({"microbatches": 4}, ["parameters.partitions: missing", "'partitions': 2"]),
        ({}, ["parameters: missing or empty", "{'partitions': 2}"]),
        (
            {"partitions": 2, "pipeline_parallel_degree": 4},
            ["partitions is 2 and pipeline_parallel_degree is 4", "Keep one"],
        ),
        (
            {"partitions": 2, "auto_partition": False},
            ["default_partition must be supplied if auto_partition is set to False!", "'default_partition': 0"],
        ),
        (
            {"partitions": 2, "default_partition": 2},
            ["default_partition must be less than the number of partitions!", "Got 2 of 2 partitions"],
        ),
        # AWS's SDK raises a bare KeyError here: 'partitions'.
        (
            {"pipeline_parallel_degree": 2, "default_partition": 2},
            ["default_partition must be less than the number of partitions!", "Got 2 of 2 partitions"],
        ),
        ({"partitions": 2, "load_partition": True}, ["load_partition: needs `partition_file`"]),
        ({"partitions": 2, "ddp_port": 1}, ["`ddp_port` needs `ddp` to be set as well", "'ddp': True"]),
        ({"partitions": 2, "ddp_dist_backend": "gloo"}, ["`ddp_dist_backend` needs `ddp` to be set as well"]),
        (
            {"partitions": 2, "ddp": True, "horovod": True},
            ["'ddp' and 'horovod' cannot be simultaneously enabled.", "'ddp' for PyTorch"],
        ),
        ({"partitions": 2, "fp8": True}, ["parameters.fp8: FP8 training is not there", "'bf16': True"]),
        ({"partitions": 2, "tensor_parallel_degree": 2}, ["tensor_parallel_degree: 2 needs `ddp` to be True"]),
        ({"sharded_data_parallel_degree": 2}, ["sharded_data_parallel_degree: 2 needs `ddp` to be True"]),
        (
            {"ddp": True, "sharded_data_parallel_degree": 2, "shard_optimizer_state": True},
            ["already shards the optimizer's state"],
        ),
        ({"partitions": 2, "shard_optimizer_state": True}, ["over replicas, which need `ddp`"]),
        ({"partitions": 1, "fp16": True, "bf16": True}, ["'fp16' and 'bf16' cannot be simultaneously enabled"]),
        ({"hybrid_shard_degree": 2}, ["belongs to version 2", "'torch_distributed': {'enabled': True}"]),
    ],
)
def test_values_that_need_or_exclude_another(parameters, phrases):
    for phrase in phrases:
        assert phrase in message(model_parallel(**parameters))


@pytest.mark.parametrize(
    ("parameters", "phrase"),
    [
        ({"partitions": 2}, "parameters.partitions: belongs to version 1 of the library, which runs under 'mpi'"),
        ({}, "parameters: missing or empty"),
        ({"hybrid_shard_degree": True}, "hybrid_shard_degree must be an integer of at least 0. Got True (bool)"),
        ({"shard_degree": 2}, "shard_degree: no such key. Did you mean 'hybrid_shard_degree'?"),
    ],
)
def test_version_2_has_its_own_keys(parameters, phrase):
    raw = model_parallel(**parameters) | {"mpi": {"enabled": False}, "torch_distributed": ON}
    assert phrase in message(raw)


@pytest.mark.parametrize(
    ("raw", "phrases"),
    [
        (
            {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}},
            ["it cannot start by itself; it runs under MPI", "Add 'mpi': {'enabled': True, 'processes_per_host': N}"],
        ),
        (
            {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}, "pytorchxla": ON},
            ["it cannot start with pytorchxla"],
        ),
        (
            {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}, "dataparallel": ON}}
            | {"mpi": ON},
            ["Cannot use more than 1 smdistributed strategy", "'ddp': True or 'horovod': True"],
        ),
        (
            {"mpi": ON, "torch_distributed": ON},
            ["two strategies at once: mpi and torch_distributed", "'enabled': False"],
        ),
        (
            {"torch_distributed": ON, "smdistributed": {"dataparallel": ON}},
            ["smdistributed.dataparallel and torch_distributed"],
        ),
        (
            {
                "mpi": {**ON, "custom_mpi_options": "-x A=1"},
                "smdistributed": {"dataparallel": {**ON, "custom_mpi_options": "-x B=2"}},
            },
            ["custom_mpi_options is in mpi and in smdistributed.dataparallel", "all of them in mpi"],
        ),
        (
            {"smdistributed": {"dataparallel": {**ON, "helpers": "cpus"}}, "instance_groups": ["cpus"]},
            ["dataparallel.helpers: cpus is also in distribution.instance_groups", "A host trains or helps"],
        ),
        (
            {"multi_worker_mirrored_strategy": ON, "parameter_server": ON},
            ["parameter_server and multi_worker_mirrored_strategy"],
        ),
        (
            {"pytorchddp": ON, "smdistributed": {"dataparallel": ON}},
            ["Cannot use both pytorchddp and smdistributed"],
        ),
        ({"mpi": {"processes_per_host": 8}}, ["distribution.mpi: 'enabled' is missing", "Add 'enabled': True, or"]),
        (
            {"smdistributed": {"modelparallel": {"parameters": {"partitions": 2}}}, "mpi": ON},
            ["distribution.smdistributed.modelparallel: 'enabled' is missing"],
        ),
        (
            {"instance_groups": ["gpus"]},
            ["Don't set training instance groups while no distribution strategies enabled!"],
        ),
    ],
)
def test_strategies_that_need_or_exclude_another(raw, phrases):
    for phrase in phrases:
        assert phrase in message(raw)


def test_pytorchddp_and_smdistributed_for_pytorch_too():
    raw = {"pytorchddp": ON, "smdistributed": {"dataparallel": ON}}
    assert "Cannot use both pytorchddp and smdistributed" in message(raw, "pytorch")


@pytest.mark.parametrize(
    ("framework", "raw"),
    [
        ("mxnet", {"smdistributed": {"dataparallel": ON}}),
        ("mxnet", model_parallel(partitions=2)),
        ("mxnet", {"torch_distributed": ON}),
        ("tensorflow", {"torch_distributed": ON}),
        ("tensorflow", {"pytorchddp": ON}),
        ("tensorflow", {"pytorchxla": ON}),
        ("pytorch", {"parameter_server": ON}),
        ("pytorch", {"multi_worker_mirrored_strategy": ON}),
        ("huggingface", {"multi_worker_mirrored_strategy": ON}),
    ],
)
def test_a_strategy_of_another_framework(framework, raw):
    assert f"not a strategy of {framework}; it would be ignored there." in message(raw, framework)
    parse(raw)  # correct while the framework is unknown


@pytest.mark.parametrize(
    ("framework", "parameters", "phrase"),
    [
        ("pytorch", {"horovod": True}, "horovod: for TensorFlow only; leave it out for PyTorch."),
        ("pytorch", {"contiguous": False}, "contiguous: for TensorFlow only"),
        ("tensorflow", {"ddp": True}, "ddp: for PyTorch only; leave it out for TensorFlow."),
        ("tensorflow", {"skip_tracing": True}, "skip_tracing: for PyTorch only"),
        ("tensorflow", {"placement_strategy": "PTD"}, "must be a value in: ['cluster', 'spread']. Got 'PTD'"),
    ],
)
def test_a_parameter_of_another_framework(framework, parameters, phrase):
    raw = model_parallel(partitions=2, **parameters)
    assert phrase in message(raw, framework)
    parse(raw)


@pytest.mark.parametrize("parameters", [3, None, ["partitions"]])
def test_parameters_that_are_neither_a_dictionary_nor_a_path(parameters):
    raw = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}, "mpi": MPI}
    assert "Expected a string path to an existing modelparallel config, or a dictionary." in message(raw)


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (None, "Expected a string path to an existing modelparallel config, or a dictionary."),
        (b"{not json", "as a json file: Expecting property name"),
        (b"\xff\xff", "as a json file"),
        (b"[1]", "or a dictionary. Got [1] (list)."),
        (json.dumps({"partitons": 2}).encode(), "Did you mean 'partitions'?"),
    ],
)
def test_parameters_from_an_unreadable_file(tmp_path, content, phrase):
    file = tmp_path / "parameters.json"
    if content is not None:
        file.write_bytes(content)
    raw = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": str(file)}}, "mpi": MPI}
    assert phrase in message(raw)


def test_a_strategy_that_is_off_is_still_checked():
    assert "Did you mean 'processes_per_host'?" in message({"mpi": {"enabled": False, "proceses_per_host": 2}})
    off = {"smdistributed": {"modelparallel": {"enabled": False, "parameters": {"partitions": "2"}}}}
    assert "The number of partitions must be a positive integer." in message(off)


def test_a_mistake_in_pytorchddp_is_reported_where_it_was_made():
    """Name the key that the user wrote, although PyTorch's is rewritten to smdistributed.dataparallel."""
    assert re.match(
        r"distribution\.pytorchddp\.enable: no such key", message({"pytorchddp": {"enable": True}}, "pytorch")
    )
    assert message({"pytorchddp": True}, "pytorch").startswith("distribution.pytorchddp: ")
    missing = message({"pytorchddp": {"custom_mpi_options": "-x A"}}, "pytorch")
    assert missing.startswith("distribution.pytorchddp: 'enabled' is missing")
