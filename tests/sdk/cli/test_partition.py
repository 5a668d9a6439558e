"""`herringbone partition show`, on files as the model-parallel library writes them."""

from __future__ import annotations

import json

import pytest

from herringbone.cli.__main__ import main
from herringbone_contract.model_parallel.partition_file import ModuleAssignment, PartitionFile, PartitionLoad, to_text


def place(path: str, partition: int | None, size: int) -> ModuleAssignment:
    return ModuleAssignment(path=path, partition=partition, parameter_bytes=size, activation_bytes=0, seconds=0.0)


def load(cost: float, size: int) -> PartitionLoad:
    return PartitionLoad(cost=cost, memory_bytes=size, seconds=0.25, communication_seconds=0.01)


FILE = PartitionFile(
    partitions=3,
    memory_weight=0.8,
    memory_cap=4096,
    method="contiguous",
    bound=0.4,
    certificate="counting",
    loads=(load(0.38, 1536), load(0.41, 900), load(0.21, 500)),
    modules=(
        place("", None, 0),
        place("embed", 0, 1536),
        place("layers", None, 0),
        place("layers.0", 1, 900),
        place("layers.0.drop", None, 0),
        place("layers.1", 2, 500),
    ),
)


@pytest.fixture
def show(tmp_path, capsys):
    """Writes a text to a file and shows it; returns the exit code, standard output and standard error."""

    def run(text: str, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "partition.json"
        path.write_text(text)
        code = main(["partition", "show", str(path), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_tree_the_ranks_and_the_gap(show):
    code, out, _ = show(to_text(FILE))
    assert code == 0
    assert (
        out
        == """\
0-2  (model)  2.9 KiB
  0    embed  1.5 KiB
1-2    layers  1.4 KiB
  1      0  900 B
  .        drop
  2      1  500 B

RANK     COST   MEMORY  SECONDS  COMMUNICATION
   0  38.00 %  1.5 KiB     0.25           0.01
   1  41.00 %    900 B     0.25           0.01
   2  21.00 %    500 B     0.25           0.01

3 partitions, memory_weight 0.8, at most 4.0 KiB a rank: costliest 41.00 %, 2.50 % above the bound 40.00 %
split by contiguous, bound by counting
"""
    )


def test_json_holds_the_file_with_bottleneck_and_gap(show):
    code, out, _ = show(to_text(FILE), "--json")
    content = json.loads(out)
    assert code == 0
    assert (content["bottleneck"], content["partitions"], len(content["modules"])) == (0.41, 3, 6)
    assert content["gap"] == pytest.approx(0.025)


def test_a_missing_file(tmp_path, capsys):
    assert main(["partition", "show", str(tmp_path / "none.json")]) == 2
    assert "none.json' cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_file_of_another_kind(show):
    code, _, err = show('{"epochs": 3}')
    assert code == 2
    assert "partition.json: this is not a partition file" in err
