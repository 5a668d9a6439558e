"""Check the size budget: files of at most 400 lines, functions of at most 60, at most 8 parameters.

Usage: `python scripts/size_budget.py`. Prints each breach and exits 1 when there is one. An exception is a line in
`EXCEPTIONS` with its reason. An exception that is no longer needed is a breach too.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("contract", "sdk", "entrypoints", "parallel", "scripts", "examples", "benchmarks", "tests")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8

# "path" or "path:function" -> reason
EXCEPTIONS: dict[str, str] = {}


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's docstring, which do not count as code."""
    doc = ast.get_docstring(node, clean=False)
    return 0 if doc is None else doc.count("\n") + 1


def breaches_of(path: Path) -> dict[str, str]:
    """Return the breaches of a file, by its name or by the name of the function."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    breaches = {}
    if (lines := text.count("\n")) > MAX_FILE_LINES:
        breaches[name] = f"{lines} lines, limit {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        size = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
        arguments = node.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        if arguments.args and arguments.args[0].arg in ("self", "cls"):
            count -= 1
        if size > MAX_FUNCTION_LINES:
            breaches[f"{name}:{node.name}"] = f"{size} lines, limit {MAX_FUNCTION_LINES}"
        elif count > MAX_PARAMETERS:
            breaches[f"{name}:{node.name}"] = f"{count} parameters, limit {MAX_PARAMETERS}"
    return breaches


def main() -> int:
    breaches: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            breaches.update(breaches_of(path))
    bad = [f"{name}: {reason}" for name, reason in breaches.items() if name not in EXCEPTIONS]
    bad += [f"{name}: the exception is no longer needed" for name in EXCEPTIONS if name not in breaches]
    print("\n".join(bad) if bad else "size budget: kept")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
