"""Finds the layouts that hosts can run with a measured script, by the library that the script uses.

A candidate is the job's own dict with other degrees, microbatches, schedules or aggregation. It goes through the rules
that `plan` checks, so no candidate is a layout that a plan would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError, ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.prediction.answer import Prediction
from herringbone_contract.prediction.question import Hosts
from herringbone_parallel.core.prediction.layout import Layout
from herringbone_parallel.core.prediction.measurement import Measurement
from herringbone_parallel.core.prediction.predict import layout_on, refused

_MAX_MICROBATCHES = 32
_PIPELINES = ("interleaved", "simple", "zero_bubble")
# `optimize` speed balances the seconds of partitions rather than their memory; memory is the default.
_SPEED_WEIGHT, _MEMORY_WEIGHT = 0.2, 0.8

Dict = dict[str, Any]


class Candidate(NamedTuple):
    """A layout, and the dict that asks for it."""

    layout: Layout
    distribution: Dict


def candidates(measurement: Measurement, hosts: Hosts, base: Mapping[str, Any]) -> Iterator[Candidate | Prediction]:
    """Yield the layouts that the hosts can run with this script, and refusals of those that they cannot.

    `base` is the job's own dict: it names the library where a script can use several, and its other keys are kept.
    """
    mpi = base.get("mpi") or {}
    if "processes_per_host" in mpi:
        base = {**base, "mpi": {**mpi, "processes_per_host": hosts.ranks_per_host}}
    known: set[Layout] = set()
    for mesh, distribution in _drafts(measurement, hosts, base):
        try:
            layout = layout_on(hosts, distribution, measurement)
        except (DistributionError, ParallelError) as error:
            yield refused(hosts, distribution, str(error), mesh)
            continue
        # Several drafts may be one layout: a rule or a default has made them equal.
        if layout not in known:
            known.add(layout)
            yield Candidate(layout, distribution)


def _drafts(measurement: Measurement, hosts: Hosts, base: Mapping[str, Any]) -> Iterator[tuple[Mesh, Dict]]:
    ranks = hosts.count * hosts.ranks_per_host
    own, wrapper = parse(base), measurement.wrapper
    if own.model_parallel_v2 is not None:
        yield from _of_version2(measurement, ranks, base)
        if wrapper == "accelerate":
            yield Mesh(replicate=ranks), _plain(base, ranks)
    elif own.model_parallel is not None or wrapper == "smp":
        yield from _of_version1(measurement, hosts, base)
    elif wrapper == "fully_shard" or ranks == 1:
        yield Mesh(shard=ranks), _plain(base, ranks)
    else:
        yield from _of_replicas(measurement, ranks, base)


def _of_replicas(measurement: Measurement, ranks: int, base: Mapping[str, Any]) -> Iterator[tuple[Mesh, Dict]]:
    """Yield the layouts of scripts that average gradients with torch's own class, or let accelerate do so."""
    strategy, any_library = parse(base).data_parallel, measurement.wrapper == "accelerate"
    mesh = Mesh(replicate=ranks)
    if strategy is not None or any_library:
        # Adding up more backwards than the job does changes the training; fewer do not.
        asked = None if strategy is None else strategy.aggregation_frequency
        every = asked if isinstance(asked, int) else 1
        for aggregation in (count for count in range(1, every + 1) if every % count == 0):
            yield mesh, _data_parallel(base, aggregation)
    # A script names the backend `smddp` itself, so it can run only under the library that has it.
    if strategy is None:
        yield mesh, _plain(base, ranks)
    if any_library:
        yield from _of_version2(measurement, ranks, base)


def _of_version2(measurement: Measurement, ranks: int, base: Mapping[str, Any]) -> Iterator[tuple[Mesh, Dict]]:
    settings = _parameters(base, "torch_distributed")
    attention = any("ttention" in module.type for module in measurement.modules)
    for tensor in _tensor_degrees(measurement, ranks):
        for context in _divisors(ranks // tensor) if attention else [1]:
            for shard in _divisors(ranks // tensor // context):
                mesh = Mesh(replicate=ranks // tensor // context // shard, shard=shard, context=context, tensor=tensor)
                # 0 and the number of all ranks that share no layer are the same degree.
                degree = shard * context if mesh.replicate > 1 else 0
                parameters = _changed(
                    settings,
                    hybrid_shard_degree=(degree, 0),
                    tensor_parallel_degree=(tensor, 1),
                    context_parallel_degree=(context, 1),
                )
                # The library is on only with a parameter.
                parameters = parameters or {"hybrid_shard_degree": 0}
                launcher = {"torch_distributed": {"enabled": True}}
                yield mesh, {**_groups(base), **launcher, "smdistributed": _model_parallel(base, parameters)}


def _of_version1(measurement: Measurement, hosts: Hosts, base: Mapping[str, Any]) -> Iterator[tuple[Mesh, Dict]]:
    own, settings = parse(base).model_parallel, _parameters(base, "mpi")
    planned = None if own is None else own.resolved()
    planned_microbatches = 1 if planned is None else planned.microbatches
    weights = dict.fromkeys((_SPEED_WEIGHT,) if planned is None else (planned.memory_weight, _SPEED_WEIGHT))
    launcher = {**(base.get("mpi") or {}), "enabled": True, "processes_per_host": hosts.ranks_per_host}
    for mesh in _meshes1(measurement, hosts.count * hosts.ranks_per_host):
        of_mesh = _with_mesh1(settings, mesh)
        for microbatches in _microbatches(measurement, mesh, planned_microbatches):
            of_batch = _changed(
                of_mesh, microbatches=(microbatches, 1), active_microbatches=(mesh.pipeline + 2, mesh.pipeline + 2)
            )
            for parameters in _schedules(of_batch, mesh, microbatches, list(weights)):
                for shared in (False, True) if mesh.data > 1 and mesh.shard == 1 else (False,):
                    changed = _changed(parameters, shard_optimizer_state=(shared, False))
                    smdistributed = _model_parallel(base, changed)
                    yield mesh, {**_groups(base), "mpi": launcher, "smdistributed": smdistributed}


def _with_mesh1(settings: Mapping[str, Any], mesh: Mesh) -> Dict:
    degree = "pipeline_parallel_degree" if "pipeline_parallel_degree" in settings else "partitions"
    # The library asks for this degree if there is no other one.
    needed = mesh.tensor == 1 and mesh.shard == 1
    changes: dict[str, tuple[Any, Any]] = {
        "partitions": (mesh.pipeline, mesh.pipeline),
        degree: (mesh.pipeline, None if needed else 1),
        "tensor_parallel_degree": (mesh.tensor, 1),
        "sharded_data_parallel_degree": (mesh.shard, 1),
    }
    if mesh.data > 1 or mesh.tensor > 1:
        changes["ddp"] = (True, False)
    # Without shards the library refuses every key about them.
    kept = {key: value for key, value in settings.items() if mesh.shard > 1 or not key.startswith("sdp_")}
    return _changed(kept, **changes)


def _schedules(settings: Dict, mesh: Mesh, microbatches: int, weights: list[float]) -> Iterator[Dict]:
    if mesh.pipeline == 1:
        # One partition holds everything, and its microbatches run one after the other under every schedule.
        yield _changed(settings, pipeline=(_PIPELINES[0], _PIPELINES[0]))
        return
    # One microbatch runs in the same order under every schedule.
    for weight in weights:
        for pipeline in _PIPELINES if microbatches > 1 else _PIPELINES[:1]:
            changed = _changed(settings, pipeline=(pipeline, _PIPELINES[0]))
            if weight == _SPEED_WEIGHT and not {"optimize", "memory_weight"} & set(settings):
                yield {**changed, "optimize": "speed"}
            else:
                default = _SPEED_WEIGHT if changed.get("optimize") == "speed" else _MEMORY_WEIGHT
                yield _changed(changed, memory_weight=(weight, default))


def _meshes1(measurement: Measurement, ranks: int) -> Iterator[Mesh]:
    for tensor in _tensor_degrees(measurement, ranks):
        for pipeline in _divisors(ranks // tensor):
            data = ranks // tensor // pipeline
            for shard in _divisors(data):
                yield Mesh(replicate=data // shard, shard=shard, pipeline=pipeline, tensor=tensor)


def _microbatches(measurement: Measurement, mesh: Mesh, planned: int) -> list[int]:
    """Return the numbers of microbatches that divide the batch: powers of two, and the job's own number."""
    batch = measurement.batch or _MAX_MICROBATCHES
    most = min(batch, _MAX_MICROBATCHES, 8 * mesh.pipeline if mesh.pipeline > 1 else 4)
    counts = {1 << power for power in range(most.bit_length()) if 1 << power <= most}
    if mesh.pipeline > 1:
        # With one microbatch all partitions but one wait.
        counts.discard(1)
    if planned <= batch:
        counts.add(planned)
    return sorted(count for count in counts if batch % count == 0)


def _tensor_degrees(measurement: Measurement, ranks: int) -> list[int]:
    """Return the numbers of ranks that can share layers; 1 where no layer can be split."""
    return _divisors(ranks) if any(module.split for module in measurement.modules) else [1]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _plain(base: Mapping[str, Any], ranks: int) -> Dict:
    """Return the dict of torch's own libraries, which run under mpi as well, if the job has that launcher."""
    own = {key: base[key] for key in ("mpi", "torch_distributed") if _enabled(base.get(key))}
    if len(own) != 1:
        own = {"torch_distributed": {"enabled": True}} if ranks > 1 else {}
    return {**own, **_groups(base)} if own else {}


def _data_parallel(base: Mapping[str, Any], aggregation: int) -> Dict:
    if aggregation == 1 and _enabled(base.get("pytorchddp")):
        return {**_groups(base), "pytorchddp": base["pytorchddp"]}
    own = (base.get("smdistributed") or {}).get("dataparallel")
    launcher = {"mpi": base["mpi"]} if own is not None and _enabled(base.get("mpi")) else {}
    strategy = _changed({**(own or {}), "enabled": True}, aggregation_frequency=(aggregation, 1))
    return {**_groups(base), **launcher, "smdistributed": {"dataparallel": strategy}}


def _model_parallel(base: Mapping[str, Any], parameters: Dict) -> Dict:
    own = (base.get("smdistributed") or {}).get("modelparallel") or {}
    return {"modelparallel": {**own, "enabled": True, "parameters": parameters}}


def _parameters(base: Mapping[str, Any], launcher: str) -> Mapping[str, Any]:
    """Return the parameters of `modelparallel` in the job's dict, if they are those of the launcher's version."""
    parameters = ((base.get("smdistributed") or {}).get("modelparallel") or {}).get("parameters")
    return parameters if _enabled(base.get(launcher)) and isinstance(parameters, Mapping) else {}


def _groups(base: Mapping[str, Any]) -> Dict:
    return {key: value for key, value in base.items() if key == "instance_groups"}


def _changed(settings: Mapping[str, Any], **changes: tuple[Any, Any]) -> Dict:
    """Return settings with other values, each given with its default, which is written only where the user wrote one.

    >>> _changed({"a": 2}, a=(1, 1), b=(1, 1), c=(2, 1))
    {'a': 1, 'c': 2}
    """
    written = {key: value for key, (value, default) in changes.items() if value != default or key in settings}
    return {**settings, **written}


def _enabled(strategy: object) -> bool:
    return isinstance(strategy, Mapping) and bool(strategy.get("enabled", True))
