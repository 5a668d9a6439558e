"""Settings that a torch is too old for, or a host has no GPUs for."""

import pytest
from tests.plans import plan_of

from herringbone import PyTorch
from herringbone.backends.process.review import review
from herringbone.backends.review.frameworks import too_old_image
from herringbone.backends.review.settings import check_ranks
from herringbone_contract.errors import DistributionError, UnsupportedError

SHARDED = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 2}}},
    "torch_distributed": {"enabled": True},
}


def version1(**parameters):
    strategy = {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "ddp": True, **parameters}}}
    return {"smdistributed": strategy, "mpi": {"enabled": True, "processes_per_host": 4}}


def plan(folder, distribution, count=2, **options):
    (folder / "train.py").touch()
    estimator = PyTorch(
        "train.py", instance_type="local_process", instance_count=count, distribution=distribution, **options
    )
    return plan_of(estimator._request, folder)


def test_more_processes_than_a_machine_can_bear_are_refused(tmp_path):
    with pytest.raises(UnsupportedError, match=r"100000 hosts with 400000 ranks .* starts 64 hosts and "):
        review(plan(tmp_path, {"mpi": {"enabled": True, "processes_per_host": 4}}, count=100_000))


@pytest.mark.parametrize(
    "distribution", [SHARDED, version1(tensor_parallel_degree=2), version1(sharded_data_parallel_degree=2)]
)
def test_a_torch_that_is_too_old_is_refused(tmp_path, distribution):
    job = plan(tmp_path, distribution, count=2)
    with pytest.raises(UnsupportedError, match=r"needs torch 2\.6 or newer, .*, which has 2\.5\.1\+cpu"):
        review(job, torch=lambda: "2.5.1+cpu")
    review(job, torch=lambda: "2.6.0")
    review(job, torch=lambda: None)


def test_any_torch_will_do_for_partitions(tmp_path):
    review(plan(tmp_path, version1()), torch=lambda: "2.2.0")


def test_an_image_that_is_too_old_is_refused(tmp_path):
    assert list(too_old_image(plan(tmp_path, SHARDED, framework_version="2.4"))) == ["framework_version"]
    assert too_old_image(plan(tmp_path, SHARDED, framework_version="2.13")) == {}


def test_a_package_list_of_the_job_may_bring_another_torch(tmp_path):
    (tmp_path / "requirements.txt").write_text("torch")
    job = plan(tmp_path, SHARDED, source_dir=str(tmp_path))
    review(job, torch=lambda: "2.5.1")


def test_degrees_count_the_gpus_of_a_host(tmp_path):
    job = plan(tmp_path, SHARDED, count=3)
    check_ranks(job, 2)
    check_ranks(job, None)
    with pytest.raises(DistributionError, match="hybrid_shard_degree 2 does not divide 3 ranks"):
        check_ranks(job, 0)


def test_nccl_needs_gpus(tmp_path):
    job = plan(tmp_path, version1(ddp_dist_backend="nccl"))
    check_ranks(job, 4)
    with pytest.raises(DistributionError, match=r"ddp_dist_backend: nccl needs GPUs, and local_process has none"):
        check_ranks(job, 0)


def test_more_hosts_than_one_machine_can_end_in_time_are_refused(tmp_path, monkeypatch):
    """1,000 processes of hosts on two cores were not ended by `stop` within minutes."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    review(plan(tmp_path, None, count=128))
    with pytest.raises(
        UnsupportedError,
        match="instance_count: 129 hosts with 129 ranks on this machine, and local_process starts 128 hosts",
    ):
        review(plan(tmp_path, None, count=129))
