"""One property: decode(encode(x)) == x for every valid distribution."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from herringbone_contract.distribution import parse
from herringbone_contract.hyperparameters import decode, encode

degrees = st.integers(1, 64)
sizes = st.integers(1, 10**12)
options = st.text(max_size=60)
flags = st.booleans()


@st.composite
def version1_parameters(draw):
    """Draw every key on its own, then fix combinations that the rules across keys forbid."""
    parameters = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "microbatches": degrees,
                "active_microbatches": degrees,
                "pipeline": st.sampled_from(["interleaved", "simple", "zero_bubble", "_only_forward"]),
                "optimize": st.sampled_from(["memory", "speed"]),
                "placement_strategy": st.sampled_from(["cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"]),
                "partition_file": options,
                "contiguous": flags,
                "horovod": flags,
                "memory_weight": st.floats(0, 1) | st.integers(0, 1),
                "deterministic_server": flags,
                "offload_activations": flags,
                "activation_loading_horizon": st.integers(0, 100),
                "fp16": flags,
                "fp16_params": flags,
                "prescaled_batch": flags,
                "skip_tracing": flags,
                "delayed_parameter_initialization": flags,
                "sdp_reduce_bucket_size": sizes,
                "sdp_param_persistence_threshold": sizes,
                "sdp_max_live_parameters": sizes,
                "sdp_hierarchical_allgather": flags,
                "sdp_gradient_clipping": st.floats(0, allow_infinity=False),
            },
        )
    )
    partitions = draw(degrees)
    for name in draw(st.sets(st.sampled_from(["partitions", "pipeline_parallel_degree"]), min_size=1)):
        parameters[name] = partitions
    if draw(flags):
        parameters["default_partition"] = draw(st.integers(0, partitions - 1))
        parameters["auto_partition"] = draw(flags)
    if "partition_file" in parameters:
        parameters["load_partition"] = draw(flags)
    if not parameters.get("fp16"):
        parameters["bf16"] = draw(flags)
    if not parameters.get("horovod") and draw(flags):
        parameters["ddp"] = True
        parameters["tensor_parallel_degree"] = draw(degrees)
        parameters["ddp_port"] = draw(st.integers(0, 65_535))
        parameters["ddp_dist_backend"] = draw(st.sampled_from(["auto", "nccl", "gloo"]))
        if partitions == 1:
            parameters["sharded_data_parallel_degree"] = draw(degrees)
        else:
            parameters["shard_optimizer_state"] = draw(flags)
    return parameters


version2_keys = {
    "hybrid_shard_degree": st.integers(0, 64),
    "sm_activation_offloading": flags,
    "activation_loading_horizon": st.integers(0, 100),
    "fsdp_cache_flush_warnings": flags,
    "allow_empty_shards": flags,
    "tensor_parallel_degree": degrees,
    "context_parallel_degree": degrees,
    "expert_parallel_degree": degrees,
    "random_seed": st.integers(-(10**9), 10**9),
}
version2_parameters = st.fixed_dictionaries({}, optional=version2_keys).filter(bool)

mpi_keys = {"processes_per_host": degrees, "custom_mpi_options": options}
mpi = st.fixed_dictionaries({"enabled": st.just(True)}, optional=mpi_keys)
mpi_off = st.fixed_dictionaries({}, optional=mpi_keys).map(lambda keys: {"enabled": False, **keys})
on, off = st.just({"enabled": True}), st.just({"enabled": False})
with_options = st.fixed_dictionaries({"enabled": st.just(True)}, optional={"custom_mpi_options": options})

words = st.text("abcdefgh0123456789.-_", min_size=1, max_size=15)
fabrics = st.builds("fabric:{}{}".format, words, st.just("") | words.map("/{}".format))
data_parallel = st.fixed_dictionaries(
    {"enabled": st.just(True)},
    optional={
        "custom_mpi_options": options,
        "helpers": st.text(min_size=1, max_size=60).map("h{}".format),
        "aggregation_frequency": degrees,
        "average_aggregated_gradients": st.booleans(),
        "wire": st.sampled_from([None, "fp16", "bf16"]),
        "rails": st.sampled_from([words, fabrics]).flatmap(
            lambda names: st.lists(names, min_size=1, max_size=4, unique=True)
        ),
    },
).map(lambda keys: {"aggregation_frequency": 2, **keys} if "average_aggregated_gradients" in keys else keys)


def parallel(name, parameters):
    return st.fixed_dictionaries({name: parameters.map(lambda keys: {"enabled": True, "parameters": keys})})


launched = st.one_of(
    st.fixed_dictionaries({"mpi": mpi}),
    st.fixed_dictionaries({"mpi": mpi, "smdistributed": parallel("modelparallel", version1_parameters())}),
    st.fixed_dictionaries({"torch_distributed": on}),
    st.fixed_dictionaries(
        {"torch_distributed": on, "smdistributed": parallel("modelparallel", version2_parameters)},
    ),
    st.fixed_dictionaries({"smdistributed": st.fixed_dictionaries({"dataparallel": data_parallel})}),
    st.fixed_dictionaries(
        {
            "mpi": st.fixed_dictionaries({"enabled": st.just(True)}, optional={"processes_per_host": degrees}),
            "smdistributed": st.fixed_dictionaries({"dataparallel": data_parallel}),
        }
    ),
    st.fixed_dictionaries({"pytorchddp": with_options}),
    *(
        st.fixed_dictionaries({name: on})
        for name in ("parameter_server", "multi_worker_mirrored_strategy", "pytorchxla")
    ),
)
switched_off = st.fixed_dictionaries(
    {},
    optional={
        "mpi": mpi_off,
        "smdistributed": st.sampled_from([{"dataparallel": {"enabled": False}}, {"modelparallel": {"enabled": False}}]),
        **dict.fromkeys(("parameter_server", "multi_worker_mirrored_strategy", "pytorchddp", "pytorchxla"), off),
        "torch_distributed": off,
    },
)
groups = st.fixed_dictionaries({}, optional={"instance_groups": st.lists(options.map("g{}".format), max_size=3)})
valid = st.builds(lambda a, b, c: {**a, **b, **c}, switched_off, launched, groups) | switched_off


@given(valid)
@settings(max_examples=300, deadline=None)
def test_decode_undoes_encode(raw):
    distribution = parse(raw)
    assert decode(encode(distribution, instance_type="local_process")) == distribution


@given(valid)
@settings(deadline=None)
def test_a_distribution_written_as_a_dict_parses_back(raw):
    distribution = parse(raw)
    assert parse(msgspec.to_builtins(distribution)) == distribution
