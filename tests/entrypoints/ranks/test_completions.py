"""Our module completes a library after the script has imported it, only where the launcher has set a variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
from herringbone_entry.ranks import import_hooks

import_hooks._COMPLETIONS = {"library.part": "ours"}
import_hooks.install("", "", "")
before = len(sys.meta_path)
import library
print("ours" in sys.modules)
if "LOOK_UPS" in os.environ:
    from importlib.util import find_spec
    print(*(find_spec("library.part").name for _ in range(2)), "ours" in sys.modules)
import library.part
print(library.part.complete, len(sys.meta_path) - before)
"""


def run(folder: Path, **variables: str) -> list[str]:
    (folder / "library").mkdir()
    (folder / "library" / "__init__.py").touch()
    (folder / "library" / "part.py").write_text("complete = False")
    (folder / "ours.py").write_text('import sys\ndef complete(): sys.modules["library.part"].complete = True')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), **variables}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def test_a_module_of_ours_runs_after_the_librarys(tmp_path: Path) -> None:
    assert run(tmp_path, HERRINGBONE_ACCELERATE="FSDP_VERSION") == ["False", "True", "-1"]


def test_without_the_variable_nothing_happens(tmp_path: Path) -> None:
    assert run(tmp_path) == ["False", "False", "0"]


def test_a_look_up_without_an_import_changes_nothing(tmp_path: Path) -> None:
    # TensorFlow looks for Keras before it imports it, and transformers looks for torch.
    variables = {"HERRINGBONE_ACCELERATE": "FSDP_VERSION", "LOOK_UPS": "2"}
    names = ["library.part"] * 2
    assert run(tmp_path, **variables) == ["False", *names, "False", "True", "-1"]
