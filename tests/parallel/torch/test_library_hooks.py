"""Every hook into torch, accelerate and transformers bites, is listed, and is refused where it does not bite."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from herringbone_contract.library_hooks import Hook
from herringbone_parallel.torch import hugging_face_hooks, library_hooks
from tests.library_hooks import problems

ROOT = Path(__file__).parents[3]
TORCH = ROOT / "parallel" / "herringbone_parallel" / "torch"
# scripts/nightly names Pythons with other releases.
HUGGING_FACE = Path(os.environ.get("TEST_HUGGINGFACE_PYTHON", ROOT / ".venv-huggingface" / "bin" / "python"))


def lists_of(module: ModuleType) -> dict[str, tuple[Hook, ...]]:
    """Return the lists of a module: its own names of tuples of hooks."""
    return {
        name: value
        for name, value in vars(module).items()
        if name[0] != "_" and isinstance(value, tuple) and all(isinstance(hook, Hook) for hook in value)
    }


LISTS = lists_of(library_hooks)


@pytest.mark.parametrize("name", sorted(set(LISTS) - {"CLIPPING"}))
def test_a_hook_that_does_not_bite_is_refused_by_name(name: str) -> None:
    import torch._dynamo  # noqa: F401  for the list of the compiler

    assert problems(LISTS[name]) == []


def test_clipping_is_served_behind_torchs_decorator() -> None:
    from herringbone_parallel.torch.model_parallel.clipping import serve_torch_clipping

    serve_torch_clipping()
    assert problems(library_hooks.CLIPPING) == []


@pytest.mark.huggingface
def test_hooks_into_accelerate_and_transformers() -> None:
    if not HUGGING_FACE.exists():
        pytest.skip("there is no Python with transformers: tests/huggingface/setup makes .venv-huggingface")
    program = """
import lightning.pytorch.trainer.trainer, transformers.trainer
from herringbone_contract.events import hugging_face
from herringbone_parallel.torch import hugging_face_hooks
from tests.library_hooks import problems
for name in NAMES:
    print(name, problems(getattr(hugging_face_hooks, name, None) or hugging_face.TRAINER_LOGS))
"""
    names = [*lists_of(hugging_face_hooks), "TRAINER_LOGS"]
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "contract", "parallel"))
    answer = subprocess.run(
        [str(HUGGING_FACE), "-c", program.replace("NAMES", str(names))],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert answer.stdout == "".join(f"{name} []\n" for name in names), answer.stdout + answer.stderr


def replaced(path: Path) -> set[str]:
    """Return the attributes that a module assigns to classes and modules of torch and of Hugging Face's libraries."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    foreign = {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in ("torch", "accelerate", "transformers")
    }
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    return {
        node.attr
        for target in targets
        for node in getattr(target, "elts", [target])
        if isinstance(node, ast.Attribute) and ast.unparse(node).partition(".")[0] in foreign
    }


def test_every_replaced_attribute_is_in_the_lists() -> None:
    lists = {**LISTS, **lists_of(hugging_face_hooks)}
    listed = {re.split("[:.]", hook.place)[-1] for hooks in lists.values() for hook in hooks}
    found = {name for path in TORCH.rglob("*.py") if path.stem != "library_hooks" for name in replaced(path)}
    assert found - listed == set()
    assert "_make_grads" in found


EARLY = """
import sys
from herringbone_entry.ranks import import_hooks
import_hooks.install("", "", "herringbone_parallel.torch.model_parallel.hugging_face.trainer")
import torch

class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

bound = Same.apply
assert not [name for name in sys.modules if name.startswith("herringbone_parallel.torch.model_parallel.placement")]
from herringbone_parallel.torch import function_apply
function_apply.serve(lambda cls, own, args, kwargs: (cls.__name__, own(*args, **kwargs).item()))
print(bound(torch.ones(1)))
"""


def test_a_custom_function_that_is_bound_before_the_library_is_imported_reaches_it() -> None:
    path = os.pathsep.join([str(ROOT / "contract"), str(ROOT / "entrypoints"), str(ROOT / "parallel")])
    answer = subprocess.run(
        [sys.executable, "-c", EARLY],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert answer.stdout == "('Same', 1.0)\n", answer.stderr + torch.__version__
