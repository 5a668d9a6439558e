"""A question to the predictor: a measured step, the hosts, and a layout or a search for the best one.

The SDK writes a `Question` as JSON to the standard input of `python -m herringbone_parallel.predict`, which answers
with an `Answer` on standard output.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from herringbone_contract.prediction.devices import Device, Link, Rate, Seconds

PositiveInt = Annotated[int, Meta(ge=1)]
# Operations that took longer than this, times what they take alone, were timed while other programs used the machine.
QUIET_SLOWDOWN = 1.25
# The parameters of `modelparallel` that split or share a model, and the value of each while a script is measured; None
# for left out. One measured step serves all their values.
WHOLE_MODEL: dict[str, object] = {
    "partitions": 1,
    "pipeline_parallel_degree": 1,
    "tensor_parallel_degree": 1,
    "context_parallel_degree": 1,
    "expert_parallel_degree": 1,
    "hybrid_shard_degree": 0,
    "sharded_data_parallel_degree": 1,
    "shard_optimizer_state": False,
    "prescaled_batch": False,
    "load_partition": False,
    "partition_file": None,
    "offload_activations": False,
    "sm_activation_offloading": False,
    "delayed_parameter_initialization": False,
    "ddp_port": None,
    "ddp_dist_backend": "auto",
}


class Hosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal hosts that train.

    `devices` is the number of devices of a host: GPUs, or 1 for a host without GPUs, whose `cores` its ranks share.
    `link` is a host's link to the others, `dollars_per_hour` the price of one host. `name` is the instance type.
    """

    name: str
    count: PositiveInt
    ranks_per_host: PositiveInt
    device: Device
    devices: PositiveInt = 1
    cores: PositiveInt | None = None
    link: Link | None = None
    dollars_per_hour: Annotated[float, Meta(ge=0.0)] | None = None


class Search(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comparison of all layouts that the hosts can run; the answer holds `limit` of them."""

    limit: PositiveInt = 50


class Work(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The length of the job: optimizer steps, or samples of all epochs together, or neither if it is not known.

    `start_seconds` passes before the first step.
    """

    steps: PositiveInt | None = None
    samples: PositiveInt | None = None
    start_seconds: Seconds = 0.0


class Question(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question.

    `measurement` is the path of the measured step. `distribution` is the dict of the job; with `search` it is the one
    to compare with. `scale` multiplies the measured batch of a rank. `timings` is the path of seconds measured on this
    machine's device, for hosts that have it.
    """

    measurement: str
    hosts: Hosts
    distribution: dict[str, Any]
    search: Search | None = None
    work: Work = Work()
    scale: Rate = 1.0
    timings: str | None = None
