"""The `distribution` dict, parsed once into frozen, typed objects; all other code reads these.

    Distribution
    +-- smdistributed          SMDistributed
    |   +-- dataparallel       DataParallel
    |   +-- modelparallel      ModelParallel
    |       +-- parameters     ModelParallelParameters, or ModelParallelV2Parameters under torch_distributed
    +-- mpi                    MPI
    +-- parameter_server       ParameterServer
    +-- multi_worker_mirrored_strategy  MultiWorkerMirroredStrategy
    +-- pytorchddp             PyTorchDDP
    +-- torch_distributed      TorchDistributed
    +-- pytorchxla             PyTorchXLA
    +-- instance_groups        names of the groups to train on

docs/look-up/distribution.md has the whole grammar in words;
`herringbone_contract.hyperparameters` carries it to the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping

from herringbone_contract import grammar, rules
from herringbone_contract.decode import mapping, read
from herringbone_contract.launcher import Launcher
from herringbone_contract.model_parallel.version1 import ModelParallelParameters, ResolvedModelParallel
from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
from herringbone_contract.rules import check_layout, with_instance_groups
from herringbone_contract.strategies import (
    MPI,
    DataParallel,
    Distribution,
    Framework,
    ModelParallel,
    MultiWorkerMirroredStrategy,
    ParameterServer,
    PyTorchDDP,
    PyTorchXLA,
    SMDistributed,
    TorchDistributed,
)

__all__ = [
    "parse",
    "parse_stored",
    "check_layout",
    "with_instance_groups",
    "Distribution",
    "Framework",
    "Launcher",
    "SMDistributed",
    "DataParallel",
    "ModelParallel",
    "ModelParallelParameters",
    "ModelParallelV2Parameters",
    "ResolvedModelParallel",
    "MPI",
    "ParameterServer",
    "MultiWorkerMirroredStrategy",
    "PyTorchDDP",
    "TorchDistributed",
    "PyTorchXLA",
]


def parse(raw: Mapping[str, object] | None, *, framework: Framework | None = None) -> Distribution:
    """Return the typed distribution of a user's dict.

    >>> job = parse({"mpi": {"enabled": True, "processes_per_host": 2},
    ...              "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}})
    >>> job.launcher.value, job.model_parallel.resolved().pipeline
    ('mpi', 'interleaved')

    A strategy with `enabled: False` is checked and then counts as not chosen. With `framework="pytorch"`,
    `pytorchddp` becomes `smdistributed.dataparallel`, as in AWS's SDK. The only file that may be read is a path given
    as `parameters`.

    Raises `DistributionError` with the path of the wrong key, the nearest legal one and a remedy.
    """
    if raw is None:
        return Distribution()
    raw = mapping(raw, "distribution")
    if framework == "pytorch":
        raw = grammar.ddp_as_data_parallel(raw)
    distribution = read(Distribution, raw, "distribution", grammar.readers(raw))
    rules.check(distribution, framework)
    return distribution


def parse_stored(raw: Mapping[str, object]) -> Distribution:
    """Return the typed distribution of a stored plan, whatever rules its release had.

    >>> parse_stored({"smdistributed": {}}) == Distribution()
    True

    Strategies that do nothing are left out, and no rule is checked: the job was submitted long ago. Raises
    `DistributionError` for keys and types that this release does not know.
    """
    chosen = grammar.chosen(raw)
    return read(Distribution, chosen, "distribution", grammar.readers(chosen))
