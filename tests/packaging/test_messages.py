"""Messages name no file of the checkout, because users of a wheel do not have it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The sources of the wheel's four packages.
SOURCES = [path for room in ("contract", "sdk", "entrypoints", "parallel") for path in (ROOT / room).rglob("*.py")]
FILE = re.compile(r"(?<![\w/.])(?:docs|examples|infra|tests|benchmarks|scripts)/[\w-]+")


def messages(tree: ast.Module):
    """Yield all texts of a module but docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def test_no_message_names_a_file_of_the_checkout():
    assert len(SOURCES) > 500
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {match[0]}"
        for path in SOURCES
        for node in messages(ast.parse(path.read_text(encoding="utf-8")))
        if (match := FILE.search(node.value))
    ]
    assert found == []
