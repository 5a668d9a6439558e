"""The imports that a script runs before any other statement, found without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from herringbone_entry.ranks.ahead.leading_imports import leading_imports


def found(folder: Path, script: str, **modules: str) -> tuple[list[str], str]:
    for name, text in modules.items():
        path = folder / f"{name.replace('DOT', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "train.py").write_text(script)
    result = leading_imports(str(folder / "train.py"), [str(folder)])
    return list(result.statements), result.end


@pytest.mark.parametrize(
    ("script", "statements", "end"),
    [
        ("", [], ""),
        ("'''text'''\nfrom __future__ import annotations\nimport a, b.c as d\n", ["import a", "import b.c as d"], ""),
        ("print(f'{time.time()}')\nN = 4\nfrom a import b, c\n", ["from a import b, c"], ""),
        ("import os\nos.environ['A'] = '1'\nimport torch\n", ["import os"], "train.py, line 2: os.environ['A'] = '1'"),
        ("import a\na.set(1)\nimport b\n", ["import a"], "train.py, line 2: a.set(1)"),
        ("import a\nX = a.set(1)\nimport b\n", ["import a"], "train.py, line 2: X = a.set(1)"),
        ("import a\na.x = 1\nimport b\n", ["import a"], "train.py, line 2: a.x = 1"),
        ("def print(*_): pass\nprint(1)\nimport b\n", [], "train.py, line 2: print(1)"),
        ("def f(x: int = 4) -> None: run()\nimport b\n", ["import b"], ""),
        ("def f(x=g()): pass\nimport b\n", [], "train.py, line 1: def f(x=g()):"),
        ("@g\ndef f(): pass\nimport b\n", [], "train.py, line 2: @g"),
        ("class A(B):\n  x = 1\n  def f(self): run()\nimport b\n", ["import b"], ""),
        ("class A:\n  x = run()\nimport b\n", [], "train.py, line 1: class A:"),
        ("try:\n  import a\nexcept ImportError:\n  a = None\nimport b\n", [], "train.py, line 1: try:"),
        ("if TYPE_CHECKING:\n  import a\nelse:\n  import c\nimport b\n", ["import c", "import b"], ""),
        ("del x\nimport b\n", [], "train.py, line 1: del x"),
        ("x = [f() for i in y]\nimport b\n", [], "train.py, line 1: x = [f() for i in y]"),
        ("x = (y := 4)\nimport b\n", [], "train.py, line 1: x = (y := 4)"),
        ("import a\nthis is no Python", [], "train.py, line 1: it cannot be parsed"),
    ],
)
def test_the_first_statement_that_an_import_could_notice_ends_the_list(
    tmp_path: Path, script: str, statements: list[str], end: str
) -> None:
    assert found(tmp_path, script) == (statements, end)


def test_modules_of_the_code_are_read_in_their_turn(tmp_path: Path) -> None:
    script = "import a\nfrom net import Net\nfrom parts.layers import mlp\nimport z\n"
    modules = {
        "net": "import torch\nfrom parts import *\nclass Net(torch.nn.Module): pass\n",
        "partsDOT__init__": "from . import layers\nfrom .layers import mlp\n",
        "partsDOTlayers": "import numpy\nimport net\n",
    }
    assert found(tmp_path, script, **modules) == (["import a", "import torch", "import numpy", "import z"], "")
    modules["partsDOTlayers"] += "numpy.seterr(all='raise')\n"
    end = "layers.py, line 3: numpy.seterr(all='raise')"
    assert found(tmp_path, script, **modules) == (["import a", "import torch", "import numpy"], end)


def test_a_folder_without_init_may_be_a_module_or_not(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    assert found(tmp_path, "import a\nimport datasets\n") == (
        ["import a"],
        "train.py, line 2: datasets may be a folder of the code",
    )
