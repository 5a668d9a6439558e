"""Find the imports with which a script begins: those that run before any other statement of the user's.

    import torch                    found
    from model import Net           of the job's own code: its file is read in the same way
    LAYERS = 4                      quiet: nothing that an import could notice
    os.environ["A"] = "1"           the end: an import below may depend on it
    import transformers             not found

These imports may run early in a prewarmed rank: at that moment a fresh rank's Python is in the same state. Whatever the
script sets before an import of its own - a variable, a filter of warnings, a module's option - ends the list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from herringbone_entry.ranks.ahead.own_modules import has_module

# Calls that change nothing an import could notice.
_QUIET_CALLS = frozenset(
    {
        *("print", "int", "float", "str", "bool", "len", "range", "tuple", "Path", "pathlib.Path", "TypeVar"),
        *("time.time", "time.monotonic", "time.perf_counter", "datetime.now", "datetime.datetime.now"),
        *("os.getenv", "os.environ.get", "os.path.join", "os.path.dirname", "os.path.abspath", "logging.getLogger"),
    }
)
_QUIET = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.JoinedStr),
    *(ast.FormattedValue, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Slice, ast.IfExp, ast.keyword),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


class LeadingImports(NamedTuple):
    """`statements` are imports of modules outside of the job's code, in their order; `end` says what ended them."""

    statements: tuple[str, ...]
    end: str = ""


def leading_imports(program: str, folders: Sequence[str]) -> LeadingImports:
    """Return the imports with which a script begins; `folders` have the modules of the job's code.

    A file that cannot be read or parsed has none: the rank itself will report that.
    """
    walk = _Walk(folders)
    walk.file(Path(program))
    return LeadingImports(tuple(walk.found), walk.end)


class _Walk:
    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [Path(folder) for folder in folders]
        self.found: list[str] = []
        self.end = ""
        self._seen: set[Path] = set()

    def file(self, path: Path) -> bool:
        """Read a file of the job's code; return False if one of its statements ended the list."""
        if path in self._seen:
            return True
        self._seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return self._ends(path, 1, "it cannot be parsed")
        # A function of the script's own may have the name of one that is known to be quiet.
        own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        return all(self._statement(node, path, own) for node in tree.body)

    def _statement(self, node: ast.stmt, path: Path, own: set[str]) -> bool:
        if isinstance(node, ast.Import):
            return all(self._import(ast.Import([alias]), alias.name, (), path, node.lineno) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            if node.module == "__future__":
                return True
            names = tuple(alias.name for alias in node.names)
            if node.level:
                return self._relative(node, names, path)
            return self._import(node, node.module or "", names, path, node.lineno)
        if isinstance(node, ast.If) and _names_type_checking(node.test):
            return all(self._statement(each, path, own) for each in node.orelse)
        return is_quiet(node, own) or self._ends(path, node.lineno, ast.unparse(node).partition("\n")[0][:60])

    def _import(self, node: ast.stmt, module: str, names: tuple[str, ...], path: Path, line: int) -> bool:
        top = module.partition(".")[0]
        homes = [folder for folder in self._folders if has_module([str(folder)], top)]
        if homes:
            return all(map(self.file, _files(homes[0], module.split("."), names)))
        if any((folder / top).is_dir() for folder in self._folders):
            # A folder without `__init__.py` is a module only if there is no other one of that name.
            return self._ends(path, line, f"{top} may be a folder of the code")
        self.found.append(ast.unparse(node))
        return True

    def _relative(self, node: ast.ImportFrom, names: tuple[str, ...], path: Path) -> bool:
        folder = path.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        return all(map(self.file, _files(folder, node.module.split(".") if node.module else [], names)))

    def _ends(self, path: Path, line: int, why: str) -> bool:
        self.end = self.end or f"{path.name}, line {line}: {why}"
        return False


def is_quiet(node: ast.AST, own: set[str]) -> bool:
    """Say whether a statement changes nothing that an import could notice; `own` are functions of the same file.

    >>> [is_quiet(ast.parse(text).body[0], set()) for text in ("N = 4", "f()", "import a", "os.environ['A'] = '1'")]
    [True, False, False, False]
    """
    if isinstance(node, ast.Expr):
        return _is_quiet_value(node.value, own)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(each, ast.Name) for each in targets) and _is_quiet_value(node.value, own)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        evaluated = [*node.decorator_list, *arguments.defaults, *filter(None, arguments.kw_defaults)]
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        evaluated += [each.annotation for each in every if each is not None and each.annotation is not None]
        return (
            all(_is_quiet_value(each, own) for each in [*evaluated, node.returns] if each) and not node.decorator_list
        )
    if isinstance(node, ast.ClassDef):
        if node.decorator_list or node.keywords:
            return False
        return all(_is_quiet_value(each, own) for each in node.bases) and all(is_quiet(each, own) for each in node.body)
    return isinstance(node, ast.Pass)


def _is_quiet_value(node: ast.AST | None, own: set[str]) -> bool:
    if node is None:
        return True
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        parts = [*node.args, *node.keywords]
        return name in _QUIET_CALLS and name not in own and all(_is_quiet_value(each, own) for each in parts)
    return isinstance(node, _QUIET) and all(_is_quiet_value(each, own) for each in ast.iter_child_nodes(node))


def _names_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _files(folder: Path, parts: Sequence[str], names: Sequence[str]) -> Iterator[Path]:
    """Return the files that an import of a module of the code runs."""
    for part in parts:
        file = folder / f"{part}.py"
        folder /= part
        yield folder / "__init__.py" if folder.is_dir() else file
    # `from package import name` imports a module of that name, if there is one.
    for name in names:
        if (folder / name / "__init__.py").is_file():
            yield folder / name / "__init__.py"
        elif (folder / f"{name}.py").is_file():
            yield folder / f"{name}.py"
