"""Check the structure of the packages: import circles, overfull folders, docstrings that start as relative clauses.

Usage: `python scripts/structure.py [--measures]`. Prints each breach and exits 1 when there is one; with `--measures`
prints sizes instead: lines of code, comments per 100 of them, tests per line of code, the largest folder.

A circle counts wherever its imports are: at the top of a module, inside a function, or under `TYPE_CHECKING`. Modules
in a circle can only be understood together, however they are loaded.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("contract", "sdk", "entrypoints", "parallel")
MAX_FOLDER_FILES = 22
CLAUSES = ("What", "Who", "Whose", "Whom", "Which", "How", "Whether", "Where", "When")

TOOL_COMMENTS = ("# noqa", "# type:", "# fmt:", "# pragma", "#!")

# "folder" or "module" -> reason
EXCEPTIONS: dict[str, str] = {}


def module_name(path: Path, source: str) -> str:
    """Return the dotted name of a file below a source root.

    >>> module_name(ROOT / "sdk/herringbone/plan/__init__.py", "sdk")
    'herringbone.plan'
    """
    name = path.relative_to(ROOT / source).with_suffix("").as_posix().replace("/", ".")
    return name.removesuffix(".__init__")


def imported(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yield each import of a module, at any depth, as the module that it names and the name taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return which of our modules each of them imports. `from package import module` counts as the module."""
    graph: dict[str, set[str]] = {}
    for name, tree in trees.items():
        targets = ((f"{module}.{taken}", module) for module, taken in imported(tree))
        graph[name] = {full if full in trees else module for full, module in targets if {full, module} & trees.keys()}
        graph[name].discard(name)
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan 1972).

    >>> circles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [['a', 'b']]
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], index[target])
        if lowest[module] == index[module]:
            start = stack.index(module)
            component = sorted(stack[start:])
            del stack[start:]
            if len(component) > 1:
                components.append(component)

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return components


def folder_sizes() -> dict[str, int]:
    """Return the number of source files in each folder, package `__init__` files not counted."""
    folders = (path for source in SOURCES for path in (ROOT / source).rglob("*") if path.is_dir())
    return {
        folder.relative_to(ROOT).as_posix(): sum(
            path.suffix in (".py", ".c", ".h") and path.name != "__init__.py" for path in folder.iterdir()
        )
        for folder in sorted(folders)
    }


def overfull_folders() -> Iterator[tuple[str, str]]:
    """Yield each folder whose listing does not fit a screen."""
    for folder, count in folder_sizes().items():
        if count > MAX_FOLDER_FILES:
            yield folder, f"{count} files, limit {MAX_FOLDER_FILES}"


def relative_clauses(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each docstring that starts with a relative clause in place of a subject."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        doc = ast.get_docstring(node)
        if doc and doc.split(None, 1)[0].rstrip(",:") in CLAUSES:
            owner = name if isinstance(node, ast.Module) else f"{name}:{node.name}"
            yield owner, f"the docstring starts with {doc.split(None, 1)[0]!r}; start with a subject or an imperative"


def count_lines(folders: Sequence[str]) -> tuple[int, int, int]:
    """Return all lines of the Python files below some folders, the lines with code, and the lines with a comment.

    Docstrings are neither code nor comments; `# noqa` and other words to tools are no comments.
    """
    total = code = comments = 0
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        total += text.count("\n")
        documented = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                comments += not token.string.startswith(TOOL_COMMENTS)
            elif token.type not in ignored:
                lines.update(range(token.start[0], token.end[0] + 1))
        code += len(lines - documented)
    return total, code, comments


def print_measures() -> None:
    """Print the sizes that the structure is judged by."""
    total, code, comments = count_lines(SOURCES)
    tests, test_code, _ = count_lines(["tests"])
    core, *_ = count_lines(["parallel/herringbone_parallel/core"])
    largest = max(folder_sizes().items(), key=lambda item: item[1])
    print(f"lines of the packages        {total}, {code} of them code")
    print(f"lines of core                {core}")
    print(f"comments per 100 code lines  {100 * comments / code:.1f}")
    print(f"test : code lines            {tests / total:.2f} (all lines), {test_code / code:.2f} (code)")
    print(f"largest folder               {largest[0]}, {largest[1]} files")


def main() -> int:
    if sys.argv[1:] == ["--measures"]:
        print_measures()
        return 0
    trees = {
        module_name(path, source): ast.parse(path.read_text(encoding="utf-8"))
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))
    }
    breaches = {circle[0]: f"imports in a circle: {', '.join(circle)}" for circle in circles(import_graph(trees))}
    breaches.update(overfull_folders())
    for name, tree in trees.items():
        breaches.update(relative_clauses(name, tree))
    bad = [f"{name}: {reason}" for name, reason in breaches.items() if name not in EXCEPTIONS]
    bad += [f"{name}: the exception is no longer needed" for name in EXCEPTIONS if name not in breaches]
    print("\n".join(bad) if bad else "structure: kept")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
