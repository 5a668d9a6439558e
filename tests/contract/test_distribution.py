"""The values that `parse` makes of correct dicts."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from herringbone_contract.distribution import (
    MPI,
    DataParallel,
    Distribution,
    Launcher,
    ModelParallel,
    ModelParallelParameters,
    ModelParallelV2Parameters,
    SMDistributed,
    TorchDistributed,
    parse,
)

MPI_2 = {"enabled": True, "processes_per_host": 2}


def model_parallel(**parameters):
    return {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}, "mpi": MPI_2}


def test_the_first_example_of_the_documentation():
    raw = model_parallel(partitions=2, microbatches=4, pipeline="interleaved", optimize="memory")
    assert parse(raw, framework="pytorch") == Distribution(
        smdistributed=SMDistributed(
            modelparallel=ModelParallel(
                enabled=True,
                parameters=ModelParallelParameters(
                    partitions=2, microbatches=4, pipeline="interleaved", optimize="memory"
                ),
            )
        ),
        mpi=MPI(enabled=True, processes_per_host=2),
    )


@pytest.mark.parametrize("raw", [None, {}])
def test_no_distribution_is_a_plain_script(raw):
    assert parse(raw) == Distribution()
    assert parse(raw).launcher is Launcher.PLAIN


@pytest.mark.parametrize(
    ("raw", "launcher"),
    [
        ({"mpi": {"enabled": True}}, "mpi"),
        (model_parallel(partitions=2), "mpi"),
        ({"torch_distributed": {"enabled": True}}, "torch_distributed"),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, "data_parallel"),
        ({"pytorchddp": {"enabled": True}}, "data_parallel"),
        ({"parameter_server": {"enabled": True}}, "parameter_server"),
        ({"multi_worker_mirrored_strategy": {"enabled": True}}, "multi_worker_mirrored"),
        ({"pytorchxla": {"enabled": True}}, "pytorch_xla"),
        ({"mpi": {"enabled": False}, "torch_distributed": {"enabled": True}}, "torch_distributed"),
        ({"mpi": {"enabled": False, "processes_per_host": 8}}, "plain"),
    ],
)
def test_launcher(raw, launcher):
    assert parse(raw).launcher.value == launcher


def test_processes_per_host_counts_only_if_mpi_is_on():
    assert parse({"mpi": MPI_2}).processes_per_host == 2
    assert parse({"mpi": {"enabled": True}}).processes_per_host is None
    assert parse({"mpi": {"enabled": False, "processes_per_host": 2}}).processes_per_host is None
    assert parse(None).processes_per_host is None


def test_a_strategy_that_is_off_is_not_chosen():
    off = {"smdistributed": {"modelparallel": {"enabled": False, "parameters": {"partitions": 2}}}}
    assert parse(off) == Distribution(smdistributed=SMDistributed(dataparallel=DataParallel(enabled=False)))
    assert parse(off).model_parallel is None
    assert parse({"torch_distributed": {"enabled": False}}) == Distribution()


@pytest.mark.parametrize("parameters", [{"partitions": 2}, {"hybrid_shard_degree": 2}])
def test_model_parallel_that_is_off_may_keep_the_parameters_of_either_library(parameters):
    raw = {
        "smdistributed": {"modelparallel": {"enabled": False, "parameters": parameters}},
        "torch_distributed": {"enabled": True},
    }
    assert parse(raw).model_parallel_v2 is None


def test_one_library_on_and_the_other_off():
    raw = model_parallel(partitions=2)
    raw["smdistributed"]["dataparallel"] = {"enabled": False}
    assert parse(raw) == parse(model_parallel(partitions=2))


def test_version_2_of_model_parallel_runs_under_torch_distributed():
    raw = {
        "torch_distributed": {"enabled": True},
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 8}}},
    }
    distribution = parse(raw, framework="pytorch")
    assert distribution.model_parallel_v2 == ModelParallelV2Parameters(hybrid_shard_degree=8)
    assert distribution.model_parallel is None
    assert distribution.torch_distributed == TorchDistributed(enabled=True)


def test_pytorchddp_is_data_parallel_for_pytorch_and_itself_elsewhere():
    raw = {"pytorchddp": {"enabled": True, "custom_mpi_options": "--verbose"}}
    assert parse(raw, framework="pytorch") == Distribution(
        smdistributed=SMDistributed(dataparallel=DataParallel(enabled=True, custom_mpi_options="--verbose"))
    )
    assert parse(raw, framework="huggingface").pytorchddp.enabled


@pytest.mark.parametrize("as_path", [str, lambda path: path])
def test_parameters_from_a_file(tmp_path, as_path):
    file = tmp_path / "parameters.json"
    file.write_text(json.dumps({"partitions": 2, "ddp": True}))
    raw = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": as_path(file)}}, "mpi": MPI_2}
    assert parse(raw) == parse(model_parallel(partitions=2, ddp=True))


def data_parallel(**keys):
    return {"smdistributed": {"dataparallel": {"enabled": True, **keys}}}


def test_data_parallel_with_all_settings():
    group = SimpleNamespace(instance_group_name="helpers", instance_type="ml.c5n.18xlarge", instance_count=4)
    raw = data_parallel(
        helpers=group, aggregation_frequency=2, average_aggregated_gradients=False, wire="bf16", rails=["eth0", "eth1"]
    )
    distribution = parse(raw)
    assert distribution.data_parallel == DataParallel(
        enabled=True,
        helpers="helpers",
        aggregation_frequency=2,
        average_aggregated_gradients=False,
        wire="bf16",
        rails=("eth0", "eth1"),
    )
    assert distribution.helpers == "helpers"
    assert parse(data_parallel()).helpers is None
    assert parse(None).data_parallel is None


def test_a_wire_of_none_counts_as_missing():
    assert parse(data_parallel(wire=None)) == parse(data_parallel())


@pytest.mark.parametrize(
    ("raw", "processes_per_host", "mpi_options"),
    [
        (data_parallel(), None, None),
        (data_parallel(custom_mpi_options=""), None, None),
        (data_parallel(custom_mpi_options="-x A=1"), None, "-x A=1"),
        ({**data_parallel(), "mpi": MPI_2}, 2, ""),
        ({**data_parallel(), "mpi": {**MPI_2, "custom_mpi_options": "-x A=1"}}, 2, "-x A=1"),
        ({**data_parallel(), "mpi": {**MPI_2, "enabled": False}}, None, None),
        ({"pytorchddp": {"enabled": True, "custom_mpi_options": "-x A=1"}}, None, "-x A=1"),
        ({"mpi": {"enabled": True, "custom_mpi_options": "-x A=1"}}, None, "-x A=1"),
        ({"torch_distributed": {"enabled": True}}, None, None),
    ],
)
def test_when_mpirun_starts_the_ranks(raw, processes_per_host, mpi_options):
    distribution = parse(raw)
    assert (distribution.processes_per_host, distribution.mpi_options) == (processes_per_host, mpi_options)


def test_data_parallel_stays_the_launcher_next_to_mpi():
    assert parse({**data_parallel(), "mpi": MPI_2}).launcher is Launcher.DATA_PARALLEL


def test_empty_mpi_options_count_as_missing():
    assert parse({"mpi": {**MPI_2, "custom_mpi_options": ""}}) == parse({"mpi": MPI_2})


def test_instance_groups_by_name_or_as_the_sdk_s_objects():
    group = SimpleNamespace(instance_group_name="gpus", instance_type="ml.p4d.24xlarge", instance_count=2)
    assert parse({"mpi": MPI_2, "instance_groups": [group]}).instance_groups == ("gpus",)
    assert parse({"mpi": MPI_2, "instance_groups": ["gpus"]}).instance_groups == ("gpus",)


@pytest.mark.parametrize("strategy", ["cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"])
def test_placement_takes_both_words_and_every_permutation(strategy):
    resolved = parse(model_parallel(partitions=2, placement_strategy=strategy)).model_parallel.resolved()
    assert resolved.placement == {"cluster": "DPT", "spread": "TPD"}.get(strategy, strategy)


def test_defaults_are_filled_in_only_when_resolved():
    parameters = parse(model_parallel(partitions=2)).model_parallel
    assert msgspec.to_builtins(parameters) == {"partitions": 2}
    assert msgspec.to_builtins(parameters.resolved()) == {
        "partitions": 2,
        "microbatches": 1,
        "active_microbatches": 4,
        "pipeline": "interleaved",
        "placement": "DPT",
        "auto_partition": True,
        "default_partition": 0,
        "load_partition": False,
        "partition_file": None,
        "contiguous": True,
        "horovod": False,
        "ddp": False,
        "ddp_port": None,
        "ddp_dist_backend": "auto",
        "memory_weight": 0.8,
        "skip_tracing": False,
        "delayed_parameter_initialization": False,
        "tensor": 1,
        "prescaled_batch": False,
        "sharded": 1,
        "sdp_reduce_bucket_size": 500_000_000,
        "sdp_param_persistence_threshold": 1_000_000,
        "sdp_max_live_parameters": 1_000_000_000,
        "sdp_hierarchical_allgather": True,
        "sdp_gradient_clipping": 1.0,
        "shard_optimizer_state": False,
        "offload_activations": False,
        "activation_loading_horizon": 4,
        "precision": "fp32",
        "fp16_params": False,
    }


def test_defaults_that_depend_on_other_keys():
    assert parse(model_parallel(partitions=2, optimize="speed")).model_parallel.resolved().memory_weight == 0.2
    assert parse(model_parallel(pipeline_parallel_degree=3)).model_parallel.resolved().partitions == 3
    assert parse(model_parallel(pipeline_parallel_degree=3)).model_parallel.resolved().active_microbatches == 5
    assert parse(model_parallel(ddp=True, sharded_data_parallel_degree=2)).model_parallel.resolved().partitions == 1


def test_a_value_is_frozen():
    with pytest.raises(AttributeError):
        parse({"mpi": MPI_2}).mpi.enabled = False


def test_the_users_values_print_and_parse_back():
    raw = model_parallel(partitions=2, memory_weight=0.5)
    distribution = parse(raw)
    assert msgspec.to_builtins(distribution) == raw
    assert repr(distribution.mpi) == "MPI(enabled=True, processes_per_host=2)"
