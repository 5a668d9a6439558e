"""What a folder's own ignore files leave out of the code.

    .gitignore            of the folder, of its folders, and of those above it up to the repository's root
    .dockerignore         of the folder; its patterns count from there, as Docker reads them
    .herringboneignore    of the folder, in the form of .gitignore

Later ones have the last word, so that `!data/` in .herringboneignore takes along what .gitignore leaves out.

Most folders have none of them, and what reads patterns takes 10 ms to import: it is imported where there are some.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec, PathSpec

# `depth` folders of a path lie above the file's own; a file above the code folder has a `prefix` to put before paths.
_Rule = tuple[str, int, "GitIgnoreSpec | PathSpec[Any]"]


class IgnoreRules:
    """The rules for one folder below `root`; `enter` gives those for a folder inside it.

    >>> IgnoreRules.of(Path("src")).leaves_out("train.py", is_folder=False)    # doctest: +SKIP
    False

    Paths are relative to `root`, with `/`. Raises `InputError` for an ignore file that cannot be read.
    """

    def __init__(self, git: tuple[_Rule, ...], last: tuple[_Rule, ...], *, looks_inside: bool) -> None:
        self._git = git
        self._last = last
        # Docker takes `!a/b` along though `a` is left out; git does not, and need not look into `a`.
        self.looks_inside = looks_inside

    @classmethod
    def of(cls, root: Path) -> IgnoreRules:
        """Read the rules of a code folder."""
        docker = list(_docker_patterns(_lines(root / ".dockerignore")))
        last: list[_Rule] = []
        if docker:
            from pathspec import PathSpec

            last.append(("", 0, PathSpec.from_lines("gitignore", docker)))
        last += _git_rule(root / ".herringboneignore", "", 0)
        git = (*_rules_above(root), *_git_rule(root / ".gitignore", "", 0))
        return cls(git, tuple(last), looks_inside=any(line.startswith("!") for line in docker))

    def enter(self, folder: Path, name: str) -> IgnoreRules:
        """Return the rules inside `folder`, whose path below the root is `name`."""
        more = _git_rule(folder / ".gitignore", "", len(PurePosixPath(name).parts))
        return IgnoreRules((*self._git, *more), self._last, looks_inside=self.looks_inside) if more else self

    def leaves_out(self, name: str, *, is_folder: bool) -> bool:
        """Say whether a file or folder is left out; the last pattern that speaks of it decides."""
        left_out = False
        for prefix, depth, spec in (*self._git, *self._last):
            path = prefix + name.split("/", depth)[depth] + ("/" if is_folder else "")
            said = spec.check_file(path).include
            if said is not None:
                left_out = said
        return left_out


def _rules_above(root: Path) -> Iterable[_Rule]:
    """Yield the rules of the repository's folders above `root`, outermost first; none outside of a repository."""
    above = [root, *root.parents]
    top = next((depth for depth, folder in enumerate(above) if (folder / ".git").exists()), 0)
    for folder in reversed(above[1 : top + 1]):
        prefix = root.relative_to(folder).as_posix() + "/"
        for rule in _git_rule(folder / ".gitignore", prefix, 0):
            # A code folder that is itself ignored was named all the same: what ignores it has no say inside.
            if not rule[2].check_file(prefix).include:
                yield rule


def _git_rule(file: Path, prefix: str, depth: int) -> tuple[_Rule, ...]:
    lines = _lines(file)
    if not lines:
        return ()
    from pathspec import GitIgnoreSpec

    return ((prefix, depth, GitIgnoreSpec.from_lines(lines)),)


def _docker_patterns(lines: Iterable[str]) -> Iterable[str]:
    """Anchor Docker's patterns: `a` means the one beside .dockerignore, where git's would mean any."""
    for line in lines:
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            negated = pattern.startswith("!")
            place = pattern.lstrip("!").strip().removeprefix("./").lstrip("/")
            # What is said of a folder is said of all in it: here files are asked about one by one.
            yield from (f"{'!' * negated}/{place}", f"{'!' * negated}/{place.rstrip('/')}/**")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; mend it, or move it away") from None
