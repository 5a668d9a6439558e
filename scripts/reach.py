"""Say which tests a change of the files can reach: for `scripts/test --changed`, and for the second gate of `.ci/run`.

    python -m scripts.reach changed [COMMIT]    test files that the changes since COMMIT (main), committed or not, reach
    python -m scripts.reach proofs              the pieces of .ci/proofs: `proved` or `stale`
    python -m scripts.reach inputs PIECE        the hash of the piece's inputs; nothing for a piece of the first gate
    python -m scripts.reach note PIECE HASH     keep in .ci/proved that the piece passed with these inputs

A test file reaches all modules of ours that it imports, at any distance, and the other files of their packages, such
as the native core. It does not reach what programs that it starts import: `.ci/proofs` declares that for its pieces.
For a module that no test imports, the tests are those in the folder that stands for its own.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import hashlib
import posixpath
import subprocess
import sys
from collections.abc import Iterable

from scripts.structure import ROOT, SOURCES, imported

PROOFS = ".ci/proofs"
PROVED = ".ci/proved"
# Fixtures of all tests. Few tests use much of what it imports, which is half of the client.
FIXTURES = "tests/conftest.py"

Files = frozenset[str]
# Modules, and the names that are taken from them.
Imports = tuple[tuple[str, str | None], ...]


def git(*arguments: str) -> Files:
    """Return the files that a command of git lists, as paths below the repository's root."""
    listed = subprocess.run(["git", *arguments, "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return frozenset(listed.split("\0")) - {""}


def repository() -> Files:
    """Return the files of the repository, with new ones that git does not ignore."""
    return frozenset(
        path for path in git("ls-files", "--cached", "--others", "--exclude-standard") if (ROOT / path).is_file()
    )


@functools.cache
def find(module: str, files: Files) -> str | None:
    """Return the file of a module of ours.

    >>> find("herringbone.plan", frozenset({"sdk/herringbone/plan/__init__.py"}))
    'sdk/herringbone/plan/__init__.py'
    """
    name = module.replace(".", "/")
    candidates = (
        posixpath.join(source, form) for source in ("", *SOURCES) for form in (f"{name}.py", f"{name}/__init__.py")
    )
    return next((path for path in candidates if path in files), None)


@functools.cache
def imports(path: str, files: Files) -> Files:
    """Return the files of ours that a module imports, with the packages around them."""
    modules: set[str] = set()
    for module, name in _imports(path)[0]:
        parts = module.split(".")
        modules.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
        # Code that has a whole module may use any of its names later.
        for taken, used in ((module, name), (f"{module}.{name}", None)):
            modules.add(taken)
            if (found := find(taken, files)) is not None:
                modules.update(of for of, later in _imports(found)[1] if used in (None, later))
    return frozenset(found for module in modules if (found := find(module, files)) is not None)


@functools.cache
def _imports(path: str) -> tuple[Imports, Imports]:
    """Return what a module imports, and what it imports when one of its names is first used.

    A package with `__getattr__` lists these imports for type checkers, under `if TYPE_CHECKING`.
    """
    body = ast.parse((ROOT / path).read_bytes()).body
    lazy = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in body)
    later = [node for node in body if lazy and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    soon = [node for node in body if node not in later]
    return tuple(imported(ast.Module(soon, []))), tuple(imported(ast.Module([*later], [])))


def reached(roots: Iterable[str], files: Files) -> set[str]:
    """Return the files that some files reach, themselves among them."""
    found: set[str] = set()
    waiting = set(roots)
    while waiting:
        path = waiting.pop()
        found.add(path)
        if path.endswith(".py") and path != FIXTURES:
            waiting |= imports(path, files) - found
    packages = {posixpath.dirname(path) for path in found} - {""}
    return found.union(*(others for package, others in companions(files).items() if package in packages))


@functools.cache
def companions(files: Files) -> dict[str, set[str]]:
    """Return the files that are no modules by the nearest folder around them that has modules."""
    folders = {posixpath.dirname(path) for path in files if path.endswith(".py")}
    found: dict[str, set[str]] = {}
    for path in files:
        folder = posixpath.dirname(path)
        while folder and folder not in folders:
            folder = posixpath.dirname(folder)
        if not path.endswith(".py"):
            found.setdefault(folder, set()).add(path)
    return found


def below(paths: Iterable[str], files: Files) -> set[str]:
    """Return the files at or below some paths. A path that names nothing is an error: a piece would pass unproved."""
    found: set[str] = set()
    for path in paths:
        named = {file for file in files if file == path or file.startswith(f"{path}/")}
        if not named:
            sys.exit(f"{PROOFS} names {path!r}, and there is no such file")
        found |= named
    return found


def digest(paths: Iterable[str]) -> str:
    """Return a hash of the names, modes and contents of files."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = (ROOT / path).read_bytes()
        total.update(f"{path}\0{(ROOT / path).stat().st_mode & 0o111}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def words(path: str) -> dict[str, list[str]]:
    """Return the lines of a file: the word before the colon, and the words behind it."""
    lines = (ROOT / path).read_text().splitlines() if (ROOT / path).exists() else []
    table = (line.split(":") for line in lines if not line.startswith("#"))
    return {name: rest.split() for name, rest in table}


def inputs(piece: str, files: Files) -> set[str]:
    """Return the files that a piece of .ci/proofs depends on."""
    table = words(PROOFS)
    return reached(below([piece], files), files) | below([*table["common"], *table[piece]], files)


def stale(files: Files) -> dict[str, bool]:
    """Return for each piece whether its inputs differ from those with which it last passed."""
    proved = words(PROVED)
    pieces = [piece for piece in words(PROOFS) if piece != "common"]
    return {piece: proved.get(piece) != [digest(inputs(piece, files))] for piece in pieces}


def note(piece: str, hashed: str) -> None:
    """Keep with which inputs a piece passed; other pieces may be noted at the same time."""
    with (ROOT / PROOFS).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = {**words(PROVED), piece: [hashed]}
        (ROOT / PROVED).write_text("".join(f"{name}: {kept[name][0]}\n" for name in sorted(kept)))


def beside(path: str, tests: Iterable[str]) -> set[str]:
    """Return the tests of a module's name in the folder that stands for its own, or else all tests there.

    >>> sorted(beside("sdk/herringbone/cli/jobs/ls.py", ["tests/sdk/cli/test_ls.py", "tests/sdk/cli/test_rm.py"]))
    ['tests/sdk/cli/test_ls.py']
    """
    room, _, inside = path.partition("/")
    inside = inside.partition("/")[2] if room in SOURCES else inside
    folder = posixpath.join("tests", room, posixpath.dirname(inside))
    while folder != "tests":
        if found := {test for test in tests if test.startswith(f"{folder}/")}:
            name = f"test_{posixpath.basename(path)}"
            return {test for test in found if posixpath.basename(test) == name} or found
        folder = posixpath.dirname(folder)
    return set()


def changed(commit: str, files: Files) -> list[str]:
    """Return the test files that the changes since a commit reach."""
    changes = git("diff", "--name-only", "--merge-base", commit) | git("ls-files", "--others", "--exclude-standard")
    tests = sorted(path for path in files if path.startswith("tests/") and posixpath.basename(path).startswith("test_"))
    reaches = {path: changes & reached([path], files) for path in tests}
    alone = {path for path in changes.difference(*reaches.values()) if path.endswith(".py")}
    named = {test for path in alone for test in beside(path, tests)}
    return [path for path in tests if reaches[path] or path in named]


def main(arguments: list[str]) -> None:
    match arguments:
        case ["changed"] | ["changed", _]:
            for test in changed(arguments[1] if arguments[1:] else "main", repository()):
                print(test)
        case ["proofs"]:
            for piece, is_stale in stale(repository()).items():
                print("stale " if is_stale else "proved", piece)
        case ["inputs", piece]:
            print(digest(inputs(piece, repository())) if piece in words(PROOFS) else "")
        case ["note", piece, hashed]:
            note(piece, hashed)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
