"""The tests that a change reaches: what `scripts/test --changed` runs, and what makes a long proof stale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scripts import reach
from scripts.structure import SOURCES

REPOSITORY = reach.repository()
EQUALITY = "tests/parallel/torch/model_parallel/test_equality.py"
PIECES = [piece for piece in reach.words(reach.PROOFS) if piece != "common"]


def test_a_test_reaches_what_it_imports_at_any_distance_and_the_native_core() -> None:
    found = reach.reached(["tests/parallel/reduce/test_sums.py"], REPOSITORY)
    assert {"parallel/herringbone_parallel/reduce/__init__.py", "contract/herringbone_contract/errors.py"} <= found
    assert any(path.endswith(".c") for path in found)
    assert not any(path.startswith("parallel/herringbone_parallel/tensorflow/") for path in found)


def test_imports_inside_functions_count() -> None:
    # Jobs of the ranks import the library inside the functions that they run.
    found = reach.reached([EQUALITY], REPOSITORY)
    assert "parallel/herringbone_parallel/torch/model_parallel/runtime/transport.py" in found


def test_a_package_that_imports_late_reaches_the_names_that_are_used() -> None:
    # Each test of the client imports the package `herringbone`, and so reached all of it.
    found = reach.reached(["tests/sdk/slots/test_line.py"], REPOSITORY)
    assert {"sdk/herringbone/__init__.py", "sdk/herringbone/slots/line.py"} <= found
    assert not any(path.startswith(("sdk/herringbone/api/", "sdk/herringbone/tuner/")) for path in found)
    assert "sdk/herringbone/tuner/store.py" in reach.reached(["tests/sdk/tuner/test_tuner.py"], REPOSITORY)


@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_depends_on_its_own_files_and_the_declared_ones(piece: str) -> None:
    inputs = reach.inputs(piece, REPOSITORY)
    assert reach.below([piece], REPOSITORY) <= inputs
    for declared in (*reach.words(reach.PROOFS)[piece], "pyproject.toml"):
        assert reach.below([declared], REPOSITORY) <= inputs


def test_the_hash_knows_names_modes_and_contents(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    hashes = [reach.digest([str(file)])]
    file.chmod(0o755)
    hashes.append(reach.digest([str(file)]))
    file.write_text("2")
    hashes.append(reach.digest([str(file)]))
    hashes.append(reach.digest([str(file.rename(tmp_path / "b"))]))
    assert len(set(hashes)) == 4


def test_every_module_has_tests_that_a_change_of_it_selects() -> None:
    """Verbs, trackers, ranks and shims are imported by name or in programs."""
    files = REPOSITORY
    tests = [path for path in files if path.startswith("tests/") and "/test_" in path]
    modules = {path for path in files if path.endswith(".py") and path.split("/")[0] in {*SOURCES, "compat"}}
    reached = set().union(*(reach.reached([path], files) for path in tests))
    assert [path for path in sorted(modules - reached) if not reach.beside(path, tests)] == []
    assert reach.beside("sdk/herringbone/cli/jobs/ls.py", tests) == {"tests/sdk/cli/test_ls.py"}
    assert reach.beside("parallel/shim/smdistributed/modelparallel/torch/nn.py", tests) > {
        "tests/parallel/test_shim.py"
    }


def test_a_path_that_names_nothing_is_an_error() -> None:
    with pytest.raises(SystemExit, match="'parallel/gone', and there is no such file"):
        reach.below(["parallel/gone"], REPOSITORY)


def test_what_the_commands_of_ci_read() -> None:
    def output(*arguments: str) -> str:
        command = [sys.executable, "-m", "scripts.reach", *arguments]
        return subprocess.run(command, cwd=reach.ROOT, check=True, capture_output=True, text=True).stdout

    assert [line.split()[1] for line in output("proofs").splitlines()] == PIECES
    assert len(output("inputs", EQUALITY).strip()) == 64
    assert output("inputs", "tests/sdk").strip() == ""
