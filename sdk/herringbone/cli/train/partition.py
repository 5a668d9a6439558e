"""`herringbone partition show`: show how a model was split, the load of each rank, and the gap to the best split."""

from __future__ import annotations

import json
from pathlib import Path

import click

from herringbone.cli.commands import json_option
from herringbone_contract.errors import InputError, ParallelError
from herringbone_contract.model_parallel.partition_file import PartitionFile, parse, to_text

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.group()
def command() -> None:
    """Show how a model was split."""


@command.command(short_help="print the tree of modules, the cost of each rank and the gap to the bound")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@json_option("the file's content with the bottleneck and the gap")
def show(path: Path, as_json: bool) -> int:
    """Print the tree of modules, the cost of each rank and the gap to the bound.

    FILE is the one that `partition_file` names.
    """
    file = _read(path)
    if as_json:
        print(json.dumps({"bottleneck": file.bottleneck, "gap": file.gap, **json.loads(to_text(file))}))
        return 0
    print("\n".join([*_tree(file), "", *_ranks(file), "", *_verdict(file)]))
    return 0


def _read(path: Path) -> PartitionFile:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"the partition file {str(path)!r} cannot be read: {error.strerror}. Jobs write it to the path in"
            " `partition_file`."
        ) from error
    except ParallelError as error:
        raise InputError(f"{path}: {error}") from error


def _tree(file: PartitionFile) -> list[str]:
    """Return one line for each module: its partitions, or "." if it runs with its inputs, then name and size."""
    # The file lists parents first, in call order, and a dict keeps that order for the printed tree.
    below: dict[str, set[int]] = {module.path: set() for module in file.modules}
    sizes = dict.fromkeys(below, 0)
    for module in file.modules:
        # Costs in the file are a module's own, so each counts for all modules around it.
        for path in _with_parents(module.path):
            if path in below:
                below[path] |= set() if module.partition is None else {module.partition}
                sizes[path] += module.parameter_bytes
    marks = {path: _numbers(partitions) for path, partitions in below.items()}
    width = max(map(len, marks.values()))
    lines = []
    for path, mark in marks.items():
        depth = len(_with_parents(path)) - 1
        name = path.rpartition(".")[2] or "(model)"
        size = f"  {_bytes(sizes[path])}" if sizes[path] else ""
        lines.append(f"{mark:>{width}}  {'  ' * depth}{name}{size}")
    return lines


def _with_parents(path: str) -> list[str]:
    """Return the paths from the model down to this module: "", "a", "a.b"."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def _numbers(partitions: set[int]) -> str:
    """Return partition numbers, consecutive ones as ranges: "0-2,5"."""
    spans: list[list[int]] = []
    for number in sorted(partitions):
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    # A module without a partition runs with its inputs; the dot keeps its column filled.
    return ",".join("-".join(map(str, span)) for span in spans) or "."


def _ranks(file: PartitionFile) -> list[str]:
    rows = [("RANK", "COST", "MEMORY", "SECONDS", "COMMUNICATION")]
    for rank, load in enumerate(file.loads):
        cost = f"{100 * load.cost:.2f} %"
        rows.append(
            (str(rank), cost, _bytes(load.memory_bytes), f"{load.seconds:.4g}", f"{load.communication_seconds:.4g}")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _verdict(file: PartitionFile) -> list[str]:
    cap = "" if file.memory_cap is None else f", at most {_bytes(file.memory_cap)} a rank"
    settings = f"{file.partitions} partitions, memory_weight {file.memory_weight:g}{cap}"
    # Rounding may put a split that is proven best slightly below its bound.
    gap = "the best there is" if file.gap <= 0 else f"{100 * file.gap:.2f} % above the bound {100 * file.bound:.2f} %"
    return [
        f"{settings}: costliest {100 * file.bottleneck:.2f} %, {gap}",
        f"split by {file.method}, bound by {file.certificate}",
    ]


def _bytes(count: int) -> str:
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"
