"""docs/look-up/distribution.md lists exactly the keys and defaults of the code."""

import json
import re
from pathlib import Path

import msgspec

from herringbone_contract.distribution import (
    MPI,
    DataParallel,
    Distribution,
    ModelParallel,
    ModelParallelParameters,
    ModelParallelV2Parameters,
    MultiWorkerMirroredStrategy,
    ParameterServer,
    PyTorchDDP,
    PyTorchXLA,
    TorchDistributed,
    parse,
)
from herringbone_contract.served import (
    BOTH,
    NONE,
    PYTORCH,
    TENSORFLOW,
    VERSION1,
    VERSION2,
    Library,
    unserved,
)

PAGE = (Path(__file__).parents[2] / "docs" / "look-up" / "distribution.md").read_text(encoding="utf-8")
STRATEGIES = {
    "smdistributed.dataparallel": DataParallel,
    "smdistributed.modelparallel": ModelParallel,
    "mpi": MPI,
    "parameter_server": ParameterServer,
    "multi_worker_mirrored_strategy": MultiWorkerMirroredStrategy,
    "pytorchddp": PyTorchDDP,
    "torch_distributed": TorchDistributed,
    "pytorchxla": PyTorchXLA,
}


def rows(heading):
    """Return the table below a heading, with one row for each key: the key, then the other cells."""
    section = PAGE.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]
    return {re.fullmatch("`(.+)`", key).group(1): rest for key, *rest in cells[2:]}


def test_strategies():
    documented = rows("Strategies")
    keys = {f"{name}.{key}" for name, strategy in STRATEGIES.items() for key in strategy.__struct_fields__}
    assert documented.keys() == keys | {"instance_groups"}
    assert {key.partition(".")[0] for key in documented} == set(Distribution.__struct_fields__)


def test_parameters_of_both_versions():
    assert list(rows("Parameters of `modelparallel`, version 1")) == list(ModelParallelParameters.__struct_fields__)
    assert list(rows("Parameters of `modelparallel`, version 2")) == list(ModelParallelV2Parameters.__struct_fields__)


def test_defaults():
    """Compare the defaults that the table shows as code with those of a job; the others depend on other keys."""
    defaults = msgspec.to_builtins(ModelParallelParameters().resolved())
    documented = {
        key: json.loads(cells[1].strip("`"))
        for key, cells in rows("Parameters of `modelparallel`, version 1").items()
        if cells[1].startswith("`")
    }
    # Parameters that our libraries do not read have AWS's defaults, which AWS's libraries fill in.
    renamed = {"tensor_parallel_degree": "tensor", "sharded_data_parallel_degree": "sharded"}
    documented = {renamed.get(key, key): value for key, value in documented.items()}
    read = documented.keys() & defaults.keys()
    assert {key: documented[key] for key in read} == {key: defaults[key] for key in read}
    assert len(read) == len(defaults) - 5  # partitions, active_microbatches, placement, memory_weight, precision
    off_values = {key: setting.off for key, setting in VERSION1.items() if setting.off is not msgspec.UNSET}
    assert {key: documented[renamed.get(key, key)] for key in off_values} == off_values


def test_what_runs_each_parameter():
    words = {NONE: "no", PYTORCH: "PyTorch", TENSORFLOW: "TensorFlow", BOTH: "both"}
    documented = {key: cells[2:4] for key, cells in rows("Parameters of `modelparallel`, version 1").items()}
    assert documented == {key: [words[setting.herringbone], words[setting.aws]] for key, setting in VERSION1.items()}
    version2 = {key: cells[2:4] for key, cells in rows("Parameters of `modelparallel`, version 2").items()}
    assert version2 == {
        key: ["yes" if setting.herringbone else "no", "yes" if setting.aws else "no"]
        for key, setting in VERSION2.items()
    }


def test_defaults_of_version_2():
    documented = {
        key: json.loads(cells[1].strip("`")) for key, cells in rows("Parameters of `modelparallel`, version 2").items()
    }
    resolved = msgspec.to_builtins(ModelParallelV2Parameters().resolved())
    assert documented == resolved | {"expert_parallel_degree": 1}


# A value for each key of the table that is a strategy, or needs a value that asks for something.
VALUES = {
    "helpers": "cpu",
    "aggregation_frequency": 2,
    "average_aggregated_gradients": True,
    "wire": "fp16",
    "rails": ["eth0"],
    "custom_mpi_options": "-x A",
    "processes_per_host": 2,
}


def test_what_runs_each_strategy():
    for path, (*_, ours, aws, _meaning) in rows("Strategies").items():
        *strategy, key = path.split(".")
        if "modelparallel" in path or path == "instance_groups":
            continue
        settings = {"enabled": True} | ({} if key == "enabled" else {key: VALUES[key]})
        if key == "average_aggregated_gradients":
            settings["aggregation_frequency"] = 2
        value = settings
        for name in reversed(strategy):
            value = {name: value}
        distribution = parse(value)
        served = {library: "no" if unserved(distribution, library, None) else "yes" for library in Library}
        assert served == {Library.HERRINGBONE: ours, Library.AWS: aws}, path
