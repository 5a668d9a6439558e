"""GPUs as nvidia-smi lists them, and their assignment to containers."""

import pytest
from tests import plans

from herringbone import Estimator
from herringbone.backends.docker.backend import DockerBackend
from herringbone.backends.docker.gpus import are_free, check_free, split_gpus
from herringbone.backends.docker.review import check
from herringbone.slots.devices import find_gpus
from herringbone.slots.ticket import Wants
from herringbone_contract.errors import LaunchError, UnsupportedError

TWO = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0a11)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1b22)
"""
SLICED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0a11)
  MIG 3g.20gb     Device  0: (UUID: MIG-aa-1)
  MIG 3g.20gb     Device  1: (UUID: MIG-bb-2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1b22)
"""


@pytest.mark.parametrize(
    ("listing", "visible", "gpus"),
    [
        (TWO, None, ("GPU-0a11", "GPU-1b22")),
        (TWO, "1", ("GPU-1b22",)),
        (TWO, "GPU-1b", ("GPU-1b22",)),
        (TWO, "", ()),
        (SLICED, None, ("MIG-aa-1", "MIG-bb-2", "GPU-1b22")),
        (SLICED, "MIG-bb-2,1", ("MIG-bb-2", "GPU-1b22")),
        ("", None, ()),
    ],
)
def test_the_gpus_of_a_machine(listing, visible, gpus):
    assert find_gpus(listing, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == gpus


def test_an_unknown_gpu_is_named():
    with pytest.raises(UnsupportedError, match="CUDA_VISIBLE_DEVICES names '7'; the GPUs of this machine: 0, 1"):
        find_gpus(TWO, {"CUDA_VISIBLE_DEVICES": "7"})


def test_each_gpu_goes_to_one_host():
    assert split_gpus("abcd", ["algo-1", "algo-2"]) == {"algo-1": ("a", "b"), "algo-2": ("c", "d")}
    assert split_gpus("abc", ["algo-1", "algo-2"]) == {"algo-1": ("a",), "algo-2": ("b",)}
    assert split_gpus("abc", ["algo-1"]) == {"algo-1": ("a", "b", "c")}
    assert split_gpus("", []) == {}


def test_too_few_gpus_are_counted():
    with pytest.raises(
        UnsupportedError, match="2 hosts with at least one GPU each, and this machine has 1 for this job"
    ):
        split_gpus("a", ["algo-1", "algo-2"])
    with pytest.raises(UnsupportedError, match="1 host with at least one GPU each, and this machine has 0"):
        split_gpus("", ["algo-1"])


class Containers:
    """An engine with containers: id -> (job, moment of creation, GPUs, state)."""

    def __init__(self, containers):
        self.containers = containers

    def get(self, path, **query):
        if query:
            assert query == {"all": True, "filters": {"label": ["dev.herringbone.gpus"]}}
            return [{"Id": name, "State": state} for name, (_, _, _, state) in self.containers.items()]
        job, created, gpus, _ = self.containers[path.split("/")[2]]
        labels = {"dev.herringbone.job": job, "dev.herringbone.gpus": gpus}
        return {"Created": f"2026-11-22T19:31:{created}Z", "Config": {"Labels": labels}}


OURS = ("b", "02.51", "GPU-0,GPU-1", "created")


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        (("a", "02.5", "GPU-1,GPU-2", "running"), True),
        # Submitted at one moment: the other one is refused, and not both.
        (("a", "02.5100001", "GPU-1", "created"), False),
        (("a", "02.5099999", "GPU-1", "created"), True),
        (("a", "01", "GPU-2,GPU-3", "running"), False),
        (("a", "01", "GPU-1", "exited"), False),
    ],
)
def test_a_gpu_that_another_job_has_is_refused_by_name(other, refused):
    engine = Containers({"c1": other, "c2": OURS, "c3": ("b", "02.6", "GPU-4", "created")})
    if not refused:
        check_free(engine, ["c2", "c3"])
        return
    with pytest.raises(
        LaunchError, match=r"job a has GPU-1; wait for its end .*`herringbone stop a`.*CUDA_VISIBLE_DEV"
    ):
        check_free(engine, ["c2", "c3"])


@pytest.mark.parametrize(("state", "free"), [("running", False), ("created", False), ("exited", True)])
def test_a_gpu_is_free_when_its_last_container_has_ended(state, free):
    engine = Containers({"c1": ("a", "01", "GPU-1,GPU-2", state)})
    assert are_free(engine, ["GPU-0", "GPU-2"]) is free
    assert are_free(engine, ["GPU-0"])


FOUR = "".join(f"GPU {number}: A (UUID: GPU-{number})\n" for number in range(4))


def backend(home, environ=None):
    return DockerBackend(home, lambda: pytest.fail("no engine is asked"), gpus=lambda: FOUR, environ=environ or {})


def plan_of(folder, **options):
    """Return the plan of a job on `local_gpu`, without the review, which needs an engine."""
    (folder / "train.py").touch()
    return plans.plan_of(Estimator("train.py", **{"instance_type": "local_gpu", **options})._asked(None), folder)


@pytest.mark.parametrize(
    ("options", "environ", "wants"),
    [
        ({}, {}, Wants(gpus=4, beside_foreign=True)),
        ({"instance_count": 3}, {}, Wants(gpus=3, beside_foreign=True)),
        ({"gpus": 1}, {}, Wants(gpus=1)),
        ({"gpus": 1, "instance_count": 2}, {}, Wants(gpus=2)),
        ({}, {"CUDA_VISIBLE_DEVICES": "1,2"}, Wants(gpus=2, among=("GPU-1", "GPU-2"), beside_foreign=True)),
        ({"instance_type": "local"}, {}, Wants()),
        ({"instance_type": "local"}, {"HERRINGBONE_CPU_SHARES": "2"}, Wants(shares=1)),
    ],
)
def test_a_job_claims_the_gpus_of_its_containers(home, tmp_path, options, environ, wants):
    assert backend(home, environ)._wants(plan_of(tmp_path, **options)) == wants


def test_containers_get_the_gpus_that_the_job_was_granted(home, tmp_path):
    plan = plan_of(tmp_path, gpus=1, instance_count=2)
    granted = ["GPU-3", "GPU-1", "cpu-share-1"]
    assert backend(home)._split_gpus(plan, granted) == {"algo-1": ("GPU-3",), "algo-2": ("GPU-1",)}


def test_more_gpus_than_there_are_is_refused(home, tmp_path):
    plan = plan_of(tmp_path, gpus=3, instance_count=2)
    with pytest.raises(UnsupportedError, match="gpus: the job needs 6 GPUs, and this machine has 4"):
        backend(home)._split_gpus(plan)


def test_containers_without_gpus_are_asked_for_none(tmp_path):
    plan = plan_of(tmp_path, gpus=1)
    check(plan)
    with pytest.raises(UnsupportedError, match="gpus: containers of instance_type 'local' have no GPUs"):
        check(plan_of(tmp_path, gpus=1, instance_type="local"))
