"""The table of what runs which setting of a `distribution`."""

import ast
from pathlib import Path

import msgspec
import pytest

from herringbone_contract.distribution import (
    ModelParallelParameters,
    ModelParallelV2Parameters,
    ResolvedModelParallel,
    parse,
)
from herringbone_contract.model_parallel.version2 import ResolvedModelParallelV2
from herringbone_contract.served import (
    BOTH,
    NONE,
    VERSION1,
    VERSION2,
    Library,
    unserved,
    unserved_parameters,
)

LIBRARIES = Path(__file__).parents[2] / "parallel" / "herringbone_parallel"
FOLDERS = {"pytorch": "torch", "tensorflow": "tensorflow"}
PARAMETERS = "distribution.smdistributed.modelparallel.parameters"
# A value of each kind that asks for something, whatever the key.
ASKING = {
    **dict.fromkeys(VERSION1, True),
}
OURS_LACKS = [key for key, setting in VERSION1.items() if setting.herringbone == NONE]


def model_parallel(**parameters):
    strategies = {"modelparallel": {"enabled": True, "parameters": {"partitions": 1, **parameters}}}
    return parse({"smdistributed": strategies, "mpi": {"enabled": True, "processes_per_host": 4}})


def test_the_table_has_every_parameter():
    assert list(VERSION1) == list(ModelParallelParameters.__struct_fields__)
    assert list(VERSION2) == list(ModelParallelV2Parameters.__struct_fields__)


@pytest.mark.parametrize("key", OURS_LACKS)
@pytest.mark.parametrize("framework", ["pytorch", None])
def test_parameters_of_aws_alone_are_refused_where_our_library_runs(key, framework):
    ddp = {"ddp": True} if key.endswith("_degree") else {}
    distribution = model_parallel(**ddp, **{key: ASKING[key]})
    refusals = unserved(distribution, Library.HERRINGBONE, framework)
    assert list(refusals) == [f"{PARAMETERS}.{key}"]
    assert refusals[f"{PARAMETERS}.{key}"].startswith(f"Herringbone's library has no {key}: ")
    assert refusals[f"{PARAMETERS}.{key}"].endswith(". AWS's own images run it on ml.*")
    assert unserved(distribution, Library.AWS, framework) == {}


@pytest.mark.parametrize("key", [key for key in OURS_LACKS if VERSION1[key].off is not msgspec.UNSET])
def test_a_value_that_asks_for_nothing_is_accepted(key):
    assert unserved(model_parallel(**{key: VERSION1[key].off}), Library.HERRINGBONE, "pytorch") == {}


@pytest.mark.parametrize(
    ("parameters", "library", "framework", "key"),
    [
        ({"pipeline": "zero_bubble"}, Library.HERRINGBONE, "tensorflow", "pipeline"),
        ({"pipeline": "zero_bubble"}, Library.AWS, "pytorch", "pipeline"),
        ({"ddp": True, "ddp_dist_backend": "gloo"}, Library.AWS, "pytorch", "ddp_dist_backend"),
        ({"ddp": True, "ddp_port": 0}, Library.HERRINGBONE, "pytorch", "ddp_port"),
        ({"memory_weight": 0.5}, Library.AWS, "tensorflow", "memory_weight"),
        ({"partition_file": "p"}, Library.HERRINGBONE, "pytorch", "partition_file"),
        (
            {"pipeline": "simple", "microbatches": 4, "active_microbatches": 2},
            Library.HERRINGBONE,
            "pytorch",
            "active_microbatches",
        ),
        # Nothing runs between a forward and its backward.
        ({"offload_activations": True}, Library.HERRINGBONE, "pytorch", "offload_activations"),
        (
            {"offload_activations": True, "microbatches": 4, "active_microbatches": 1},
            Library.HERRINGBONE,
            "pytorch",
            "offload_activations",
        ),
        ({"sdp_reduce_bucket_size": 1000}, Library.HERRINGBONE, "pytorch", "sdp_reduce_bucket_size"),
        ({"sdp_hierarchical_allgather": False}, Library.HERRINGBONE, "pytorch", "sdp_hierarchical_allgather"),
        (
            {"partitions": 2, "ddp": True, "sharded_data_parallel_degree": 2, "sdp_max_live_parameters": 1000},
            Library.HERRINGBONE,
            "pytorch",
            "sdp_max_live_parameters",
        ),
    ],
)
def test_values_that_fewer_libraries_run(parameters, library, framework, key):
    assert list(unserved(model_parallel(**parameters), library, framework)) == [f"{PARAMETERS}.{key}"]


@pytest.mark.parametrize("key", ModelParallelV2Parameters.__struct_fields__)
def test_version_2_runs_where_the_table_says(key):
    value = 2 if "degree" in key or key in ("activation_loading_horizon", "random_seed") else True
    strategy = {"modelparallel": {"enabled": True, "parameters": {key: value}}}
    distribution = parse({"smdistributed": strategy, "torch_distributed": {"enabled": True}})
    refused = [] if VERSION2[key].herringbone else [f"{PARAMETERS}.{key}"]
    assert list(unserved(distribution, Library.HERRINGBONE, "pytorch")) == refused
    assert unserved(distribution, Library.AWS, "pytorch") == {}


def test_expert_parallelism_is_refused_by_name():
    assert [key for key, setting in VERSION2.items() if not setting.herringbone] == ["expert_parallel_degree"]


def test_aws_s_library_does_not_shard_a_pipeline():
    distribution = model_parallel(partitions=2, ddp=True, sharded_data_parallel_degree=2)
    assert list(unserved(distribution, Library.AWS, "pytorch")) == [f"{PARAMETERS}.sharded_data_parallel_degree"]
    assert unserved(distribution, Library.HERRINGBONE, "pytorch") == {}


@pytest.mark.parametrize(
    ("key", "value"), [("helpers", "cpu"), ("aggregation_frequency", 2), ("wire", "bf16"), ("rails", ["eth0"])]
)
def test_our_keys_of_data_parallelism_do_not_run_in_aws_s_images(key, value):
    distribution = parse({"smdistributed": {"dataparallel": {"enabled": True, key: value}}})
    assert list(unserved(distribution, Library.AWS, "pytorch")) == [f"distribution.smdistributed.dataparallel.{key}"]
    assert unserved(distribution, Library.HERRINGBONE, "pytorch") == {}


def test_pytorch_xla_runs_in_aws_s_images_alone():
    distribution = parse({"pytorchxla": {"enabled": True}})
    assert list(unserved(distribution, Library.HERRINGBONE, "pytorch")) == ["distribution.pytorchxla"]
    assert unserved(distribution, Library.AWS, "pytorch") == {}


def settings_read_by(framework, library="model_parallel"):
    """Return the attributes that a framework's library reads of an object named `settings`."""
    names = set()
    for path in (LIBRARIES / FOLDERS[framework] / library).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                owner = node.value
                if "settings" in (getattr(owner, "id", ""), getattr(owner, "attr", "")):
                    names.add(node.attr)
    return names


# Parameters that a library reads under another name, which `resolved` computes.
READ_AS = {
    "pipeline_parallel_degree": "partitions",
    "optimize": "memory_weight",
    "placement_strategy": "placement",
    "tensor_parallel_degree": "tensor",
    "sharded_data_parallel_degree": "sharded",
    "fp16": "precision",
    "bf16": "precision",
}


@pytest.mark.parametrize("framework", sorted(BOTH))
def test_each_library_reads_the_parameters_that_the_table_gives_it(framework):
    keys = {READ_AS.get(key, key) for key, setting in VERSION1.items() if framework in setting.herringbone}
    assert keys <= set(ResolvedModelParallel.__struct_fields__)
    assert keys - settings_read_by(framework) == set()


def test_version_2_s_library_reads_the_parameters_that_the_table_gives_it():
    keys = {key for key, setting in VERSION2.items() if setting.herringbone}
    assert keys == set(ResolvedModelParallelV2.__struct_fields__)
    assert keys - settings_read_by("pytorch", "sharding") == set()


def test_nothing_is_parsed_for_the_libraries_that_none_reads():
    read = settings_read_by("pytorch") | settings_read_by("tensorflow")
    assert set(ResolvedModelParallel.__struct_fields__) - read == set()


def test_off_values_are_the_defaults():
    assert unserved_parameters(ModelParallelParameters(), Library.HERRINGBONE, None) == {}
