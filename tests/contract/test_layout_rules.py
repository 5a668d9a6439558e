"""The rules that need the size of the job, or the estimator's instance groups."""

import pytest

from herringbone_contract.distribution import check_layout, parse, with_instance_groups
from herringbone_contract.errors import DistributionError

MPI = {"enabled": True}


def model_parallel(**parameters):
    return parse({"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}, "mpi": MPI})


@pytest.mark.parametrize(
    ("parameters", "hosts", "processes_per_host"),
    [
        ({"partitions": 2}, 1, 2),
        ({"partitions": 2}, 2, 1),
        ({"partitions": 4}, 2, 8),
        ({"partitions": 2, "tensor_parallel_degree": 2, "ddp": True}, 1, 8),
        ({"sharded_data_parallel_degree": 4, "ddp": True}, 2, 4),
    ],
)
def test_degrees_that_divide_the_ranks(parameters, hosts, processes_per_host):
    check_layout(model_parallel(**parameters), hosts=hosts, processes_per_host=processes_per_host)


@pytest.mark.parametrize(
    ("parameters", "hosts", "processes_per_host", "phrase"),
    [
        ({"partitions": 2}, 1, 3, "partitions 2 does not divide 3 ranks. Make processes_per_host"),
        ({"pipeline_parallel_degree": 4}, 1, 2, "partitions 4 does not divide 2 ranks"),
        (
            {"partitions": 2, "tensor_parallel_degree": 4, "ddp": True},
            1,
            12,
            "partitions 2 x tensor_parallel_degree 4 = 8 does not divide 12 ranks",
        ),
        (
            {"sharded_data_parallel_degree": 3, "ddp": True},
            2,
            2,
            "partitions 1 x sharded_data_parallel_degree 3 = 3 does not divide 4 ranks",
        ),
    ],
)
def test_degrees_that_do_not(parameters, hosts, processes_per_host, phrase):
    with pytest.raises(DistributionError) as caught:
        check_layout(model_parallel(**parameters), hosts=hosts, processes_per_host=processes_per_host)
    assert phrase in str(caught.value)


def test_version_2_degrees():
    distribution = parse(
        {
            "torch_distributed": {"enabled": True},
            "smdistributed": {
                "modelparallel": {
                    "enabled": True,
                    "parameters": {"hybrid_shard_degree": 0, "tensor_parallel_degree": 3},
                }
            },
        }
    )
    check_layout(distribution, hosts=1, processes_per_host=6)
    with pytest.raises(DistributionError, match="tensor_parallel_degree 3 does not divide 8 ranks"):
        check_layout(distribution, hosts=1, processes_per_host=8)


def test_without_model_parallel_any_layout_is_fine():
    check_layout(parse({"mpi": MPI}), hosts=3, processes_per_host=5)
    check_layout(parse(None), hosts=3, processes_per_host=1)


def chosen(names, groups):
    raw = {"mpi": MPI} if names is None else {"mpi": MPI, "instance_groups": names}
    return with_instance_groups(parse(raw), groups)


def test_instance_groups_that_fit():
    assert chosen(["gpus"], ["gpus", "cpus"]).instance_groups == ("gpus",)
    assert chosen(None, ["gpus"]).instance_groups == ("gpus",)
    assert chosen(None, []) == parse({"mpi": MPI})
    assert with_instance_groups(parse(None), ["gpus", "cpus"]) == parse(None)


def helped(groups, names=None):
    raw = {"smdistributed": {"dataparallel": {"enabled": True, "helpers": "cpus"}}}
    return with_instance_groups(parse(raw if names is None else {**raw, "instance_groups": names}), groups)


def test_the_group_next_to_the_helpers_trains():
    assert helped(["gpus", "cpus"]).instance_groups == ("gpus",)
    assert helped(["cpus", "gpus"], ["gpus"]).instance_groups == ("gpus",)
    assert helped(["gpus", "more", "cpus"], ["more"]).instance_groups == ("more",)


@pytest.mark.parametrize(
    ("names", "groups", "phrase"),
    [
        (
            None,
            [],
            "dataparallel.helpers: helper hosts are an instance group of the job, and the estimator has no groups",
        ),
        (
            None,
            ["gpus", "cpu"],
            "dataparallel.helpers: there is no instance group 'cpus'. The estimator has: gpus, cpu.",
        ),
        (None, ["cpus"], "dataparallel.helpers: cpus is the only instance group, and no host is left to train on."),
        (None, ["a", "b", "cpus"], "only contain one instance group name ! Name the one to train on: a, b."),
    ],
)
def test_helpers_that_do_not_fit_the_groups(names, groups, phrase):
    with pytest.raises(DistributionError) as caught:
        helped(groups, names)
    assert phrase in str(caught.value)


@pytest.mark.parametrize(
    ("names", "groups", "phrase"),
    [
        (["gpus"], [], "Instance groups not specified in the estimator !"),
        (["a", "b"], ["a"], "Train instance groups oversubscribed !"),
        (["tpus"], ["gpus", "cpus"], "Invalid training instance group tpus ! The estimator has: gpus, cpus."),
        (None, ["gpus", "cpus"], "Distribution should only contain one instance group name !"),
        (["gpus", "cpus"], ["gpus", "cpus"], "Distribution should only contain one instance group name !"),
    ],
)
def test_instance_groups_that_do_not(names, groups, phrase):
    with pytest.raises(DistributionError) as caught:
        chosen(names, groups)
    assert phrase in str(caught.value)
