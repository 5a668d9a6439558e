"""Each key of a `distribution` on each backend with each kind of image: `plan` refuses what the job's library lacks.

The expectation is the page for users, docs/look-up/distribution.md, and no code. A rank then decodes what passed.
"""

import re
from pathlib import Path

import msgspec
import pytest
from tests.plans import plan_of

from herringbone import PyTorch, TensorFlow
from herringbone.backends.docker import review as docker
from herringbone.backends.docker.image import Image
from herringbone.backends.process import review as process
from herringbone.backends.sagemaker import review as sagemaker
from herringbone.backends.slurm import review as slurm
from herringbone.backends.ssh import review as ssh
from herringbone.backends.ssh.machines.inventory import parse_inventory
from herringbone_contract.constants import Key
from herringbone_contract.errors import DistributionError, UnsupportedError
from herringbone_contract.hyperparameters import decode
from herringbone_contract.model_parallel.version1 import ModelParallelParameters
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
from herringbone_parallel.core import launch

PAGE = (Path(__file__).parents[4] / "docs/look-up/distribution.md").read_text(encoding="utf-8")
OURS = "registry.example.com/team/herringbone/pytorch:2.13"
AWS = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.5.1-gpu-py311"
# The ranks of version 1 are on one host. Under version 2 a host without GPUs has one rank, and 2 divides 4 hosts.
HOSTS_OF_VERSION2 = 4
VALUES = {
    "pipeline": "interleaved",
    "optimize": "speed",
    "placement_strategy": "spread",
    "partition_file": "p.json",
    "ddp_port": 29_500,
    "ddp_dist_backend": "auto",
    "memory_weight": 0.5,
    "default_partition": 0,
    "sdp_gradient_clipping": 1.0,
    "random_seed": 1,
}
# What a key needs next to it.
NEEDS = {
    **{key: {"ddp": True} for key in ("ddp_port", "ddp_dist_backend", "tensor_parallel_degree")},
    "sharded_data_parallel_degree": {"ddp": True},
    "load_partition": {"partition_file": "p.json"},
    "activation_loading_horizon": {"offload_activations": True, "microbatches": 4},
    "offload_activations": {"microbatches": 4},
    **{
        key: {"ddp": True, "sharded_data_parallel_degree": 2}
        for key in ModelParallelParameters.__struct_fields__
        if key.startswith("sdp_")
    },
    "shard_optimizer_state": {"ddp": True},
    "prescaled_batch": {"ddp": True, "tensor_parallel_degree": 2},
    "fp16_params": {"fp16": True},
}
NEEDS_OF_VERSION2 = {"activation_loading_horizon": {"sm_activation_offloading": True}}
FRAMEWORKS = {"PyTorch": PyTorch, "TensorFlow": TensorFlow}


def documented(heading):
    """Return the cells `Herringbone` and `AWS's images` of each row of a table of the page."""
    section = PAGE.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    return {
        match[1]: (match[2].strip(), match[3].strip())
        for match in re.finditer(r"^\| `(\w+)` \|[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|", section, re.MULTILINE)
    }


VERSION1_ROWS = documented("Parameters of `modelparallel`, version 1")
VERSION2_ROWS = documented("Parameters of `modelparallel`, version 2")


def value_of(struct, key):
    """Return a value of the key that asks for something."""
    if key in VALUES:
        return VALUES[key]
    field = next(field for field in msgspec.structs.fields(struct) if field.name == key)
    return True if "bool" in str(field.type) else 2


def plan_for(kind, instance_type, image, distribution, folder):
    options = {} if image is None else {"image_uri": image}
    hosts = HOSTS_OF_VERSION2 if "torch_distributed" in distribution else 1
    estimator = kind(
        entry_point="train.py",
        instance_type=instance_type,
        instance_count=hosts,
        role="r",
        distribution=distribution,
        **options,
    )
    return plan_of(estimator._request, folder)


def review_docker(plan):
    docker.check(plan)
    name = plan.arguments.image_uri
    docker.check_image(plan, Image(name, "sha256:1", is_ours=name == OURS))


def review_ssh(plan, runtime):
    hosts = [f"machine-{number}" for number in range(len(plan.hosts))]
    ssh.review(plan, parse_inventory({"hosts": hosts, "runtime": runtime}, "hosts.yaml"))


# Backend, image, the columns of the page whose libraries must run the key, and the review.
CELLS = [
    ("local_process", None, "ours", lambda plan: process.review(plan, lambda: "2.21.0")),
    ("local", OURS, "ours", review_docker),
    # The image's own library runs the job, but nothing outside of `ml.*` starts what ours cannot.
    ("local", AWS, "both", review_docker),
    ("slurm:gpu", None, "ours", slurm.check),
    ("slurm:gpu", AWS, "both", slurm.check),
    ("ssh:any", None, "ours", lambda plan: review_ssh(plan, "process")),
    ("ssh:any", OURS, "ours", lambda plan: review_ssh(plan, "docker")),
    ("ssh:any", AWS, "both", lambda plan: review_ssh(plan, "docker")),
    ("ml.c5.xlarge", OURS, "ours", sagemaker.review),
    ("ml.c5.xlarge", AWS, "aws", sagemaker.review),
]


def serves(cell, framework):
    return cell in ("both", "yes", framework)


def check(cell, framework, path, row, distribution, folder):
    """Compare the refusal of one cell with the page, and let a rank decode what passed."""
    instance_type, image, columns, review = cell
    ours, aws = (serves(word, framework) for word in row)
    expected = {"ours": ours, "aws": aws, "both": ours and aws}[columns]
    place = (framework, path, instance_type, image)
    refusal, plan = "", None
    try:
        plan = plan_for(FRAMEWORKS[framework], instance_type, image, distribution, folder)
        review(plan)
    except (UnsupportedError, DistributionError) as error:
        refusal = str(error)
    assert bool(refusal) is not expected, (place, refusal)
    if refusal:
        assert path in refusal, (place, refusal)
        return
    if columns == "ours":
        raw = plan.hyperparameters[Key.MODEL_PARALLEL_PARAMETERS]
        environ = {"SM_HP_MP_PARAMETERS": raw}
        if decode(plan.hyperparameters).model_parallel is None:
            launch.model_parallel_v2(environ)
        else:
            launch.model_parallel(environ, framework.lower())


@pytest.mark.parametrize("key", ModelParallelParameters.__struct_fields__)
def test_version_1(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    parameters = {"partitions": 2, **NEEDS.get(key, {}), key: value_of(ModelParallelParameters, key)}
    if key == "pipeline_parallel_degree":
        del parameters["partitions"]
    tensor, shards = (parameters.get(f"{name}_degree", 1) for name in ("tensor_parallel", "sharded_data_parallel"))
    if shards > 1:
        # AWS's library does not shard a pipeline, which tests/contract/test_served.py tests.
        parameters["partitions"] = 1
    partitions = parameters.get("partitions", 2)
    distribution = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "mpi": {"enabled": True, "processes_per_host": partitions * tensor * shards},
    }
    for framework in FRAMEWORKS:
        # A key without the keys that it needs is another mistake, with another message.
        if any(not serves(cell, framework) for name in NEEDS.get(key, ()) for cell in VERSION1_ROWS[name]):
            continue
        for cell in CELLS:
            check(cell, framework, f"parameters.{key}", VERSION1_ROWS[key], distribution, tmp_path)


@pytest.mark.parametrize("key", ModelParallelV2Parameters.__struct_fields__)
def test_version_2(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    parameters = {**NEEDS_OF_VERSION2.get(key, {}), key: value_of(ModelParallelV2Parameters, key)}
    distribution = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        "torch_distributed": {"enabled": True},
    }
    for cell in CELLS:
        check(cell, "PyTorch", f"parameters.{key}", VERSION2_ROWS[key], distribution, tmp_path)
