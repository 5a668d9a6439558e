"""The degrees of parallelism of a job, and the rule that their product is the number of ranks."""

import pytest

from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError
from herringbone_contract.model_parallel.mesh import Mesh, of_version1, of_version2
from herringbone_contract.rules import mesh_of


@pytest.mark.parametrize("ranks", range(1, 17))
def test_the_product_of_the_degrees_is_the_number_of_ranks(ranks):
    for first in range(1, 5):
        for second in range(1, 5):
            for third in range(1, 3):
                if ranks % (first * second * third) == 0:
                    assert of_version1(ranks, pipeline=first, tensor=second, shard=third).ranks == ranks
                    assert of_version2(ranks, hybrid_shard=first * third, context=third, tensor=second).ranks == ranks
                    assert of_version2(ranks, context=third, tensor=second).replicate == 1


def test_batches_are_those_of_replicas_and_shards():
    assert Mesh(replicate=2, shard=3, context=5, pipeline=7, tensor=11).batches == 6
    assert Mesh(replicate=2, shard=3, context=5).data == 30


@pytest.mark.parametrize(
    ("ranks", "degrees", "message"),
    [
        (6, {"hybrid_shard": 4}, "hybrid_shard_degree 4 does not divide 6 ranks"),
        (6, {"hybrid_shard": 2, "tensor": 2}, "hybrid_shard_degree 2 x tensor_parallel_degree 2 = 4 does not divide 6"),
        (6, {"context": 4}, "context_parallel_degree 4 does not divide 6 ranks"),
        (8, {"hybrid_shard": 2, "context": 4}, "hybrid_shard_degree 2 is not a multiple of context_parallel_degree 4"),
    ],
)
def test_degrees_that_do_not_fit_are_named(ranks, degrees, message):
    with pytest.raises(DistributionError, match=message):
        of_version2(ranks, **degrees)


def test_the_mesh_of_a_dict():
    version1 = {"partitions": 2, "ddp": True, "sharded_data_parallel_degree": 2}
    job = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": version1}}, "mpi": {"enabled": True}}
    assert mesh_of(parse(job), 8) == Mesh(replicate=2, shard=2, pipeline=2)
    version2 = {"hybrid_shard_degree": 4, "context_parallel_degree": 2}
    strategies = {"modelparallel": {"enabled": True, "parameters": version2}}
    job = {"smdistributed": strategies, "torch_distributed": {"enabled": True}}
    assert mesh_of(parse(job), 8) == Mesh(replicate=2, shard=2, context=2)
