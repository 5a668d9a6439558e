"""Check the size budget of Python and C: files of at most 400 lines, functions of at most 60, at most 8 parameters.

Usage: `python scripts/size_budget.py`. Prints each breach and exits 1 when there is one. An exception is a line in
`EXCEPTIONS` with its reason. An exception that is no longer needed is a breach too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("contract", "sdk", "entrypoints", "parallel", "scripts", "examples", "benchmarks", "tests")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8

# "path" or "path:function" -> reason
EXCEPTIONS: dict[str, str] = {}

_C_NO_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.DOTALL)
# A function's definition begins in the first column; `NAME(x)(` is the name that a macro makes.
_C_FUNCTION = re.compile(r"^\w[^;{}()]*?(\w+(?:\(\w+\))?)\(([^(){};]*)\) \{", re.MULTILINE)


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function's docstring, which do not count as code."""
    doc = ast.get_docstring(node, clean=False)
    return 0 if doc is None else doc.count("\n") + 1


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each function's name, lines without its docstring, and parameters without `self`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        arguments = node.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        if arguments.args and arguments.args[0].arg in ("self", "cls"):
            count -= 1
        yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node), count


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each function's name, lines and parameters."""
    code = _C_NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in _C_FUNCTION.finditer(code):
        depth, end = 1, match.end()
        while depth and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        parameters = match[2].strip()
        count = 0 if parameters in ("", "void") else parameters.count(",") + 1
        yield match[1], code.count("\n", match.start(), end) + 1, count


def breaches_of(path: Path) -> dict[str, str]:
    """Return the breaches of a file, by its name or by the name of the function."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    breaches = {}
    if (lines := text.count("\n")) > MAX_FILE_LINES:
        breaches[name] = f"{lines} lines, limit {MAX_FILE_LINES}"
    functions = python_functions if path.suffix == ".py" else c_functions
    for function, size, count in functions(text):
        if size > MAX_FUNCTION_LINES:
            breaches[f"{name}:{function}"] = f"{size} lines, limit {MAX_FUNCTION_LINES}"
        elif count > MAX_PARAMETERS:
            breaches[f"{name}:{function}"] = f"{count} parameters, limit {MAX_PARAMETERS}"
    return breaches


def main() -> int:
    breaches: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                breaches.update(breaches_of(path))
    bad = [f"{name}: {reason}" for name, reason in breaches.items() if name not in EXCEPTIONS]
    bad += [f"{name}: the exception is no longer needed" for name in EXCEPTIONS if name not in breaches]
    print("\n".join(bad) if bad else "size budget: kept")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
