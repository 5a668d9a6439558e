"""Apply the ignore files of a code folder.

    .git/info/exclude     of the repository
    .gitignore            of the folder, of its folders, and of those above it up to the repository's root
    .dockerignore         of the folder; its patterns are relative to it, as in Docker
    .herringboneignore    of the folder, in the format of .gitignore

The last matching pattern decides, in this order of files: `!data/` in .herringboneignore keeps a folder that
.gitignore leaves out.

Most folders have no ignore file, and `pathspec` takes 10 ms to import: it is imported only if a file has patterns.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec, PathSpec

# (prefix, depth, patterns). Before matching, `depth` leading folders are cut from a path, because the ignore file lies
# that deep. For an ignore file above the code folder, `prefix` is put in front of the path.
_Rule = tuple[str, int, "GitIgnoreSpec | PathSpec[Any]"]


class IgnoreRules:
    """The rules for one folder below `root`; `enter` returns the rules for a folder inside it.

    >>> IgnoreRules.of(Path("src")).leaves_out("train.py", is_folder=False)    # doctest: +SKIP
    False

    Paths are relative to `root`, with `/`. Raises `InputError` for an ignore file that cannot be read.
    """

    def __init__(self, git_rules: tuple[_Rule, ...], final_rules: tuple[_Rule, ...], *, looks_inside: bool) -> None:
        self._git_rules = git_rules
        self._final_rules = final_rules
        # Docker keeps `a/b` for the pattern `!a/b` although `a` is left out; git does not, and need not look into `a`.
        self.looks_inside = looks_inside

    @classmethod
    def of(cls, root: Path) -> IgnoreRules:
        """Read the rules of a code folder."""
        docker_patterns = list(_docker_patterns(_lines(root / ".dockerignore")))
        final_rules: list[_Rule] = []
        if docker_patterns:
            from pathspec import PathSpec

            final_rules.append(("", 0, PathSpec.from_lines("gitignore", docker_patterns)))
        final_rules += _git_rule(root / ".herringboneignore", "", 0)
        git_rules = (*_rules_above(root), *_git_rule(root / ".gitignore", "", 0))
        return cls(git_rules, tuple(final_rules), looks_inside=any(line.startswith("!") for line in docker_patterns))

    def enter(self, folder: Path, name: str) -> IgnoreRules:
        """Return the rules inside `folder`, whose path below the root is `name`."""
        added_rules = _git_rule(folder / ".gitignore", "", len(PurePosixPath(name).parts))
        return (
            IgnoreRules((*self._git_rules, *added_rules), self._final_rules, looks_inside=self.looks_inside)
            if added_rules
            else self
        )

    def leaves_out(self, name: str, *, is_folder: bool) -> bool:
        """Return True if a file or folder is left out; the last pattern that matches it decides."""
        left_out = False
        for prefix, depth, spec in (*self._git_rules, *self._final_rules):
            # The slash at the end lets patterns such as `data/` match folders only.
            path = prefix + name.split("/", depth)[depth] + ("/" if is_folder else "")
            include = spec.check_file(path).include
            if include is not None:
                left_out = include
        return left_out


def _rules_above(root: Path) -> Iterable[_Rule]:
    """Yield the rules of the repository's folders above `root`, outermost first; nothing outside of a repository."""
    above = [root, *root.parents]
    # In a worktree or a submodule `.git` is a file, hence `exists`. 0 means that no folder above belongs to it.
    top = next((depth for depth, folder in enumerate(above) if (folder / ".git").exists()), 0)
    files = [(above[top], _excluding(above[top] / ".git"))]
    files += [(folder, folder / ".gitignore") for folder in reversed(above[1 : top + 1])]
    for folder, file in files:
        prefix = "" if folder == root else root.relative_to(folder).as_posix() + "/"
        for rule in _git_rule(file, prefix, 0):
            # The user named the code folder, so an ignore file that leaves out the whole folder does not apply.
            if not (prefix and rule[2].check_file(prefix).include):
                yield rule


def _excluding(git: Path) -> Path:
    """Return the file that leaves files out of one clone; worktrees share that of their repository."""
    if git.is_file():
        git = git.parent / git.read_text().partition("gitdir:")[2].strip()
        if (common := git / "commondir").is_file():
            git /= common.read_text().strip()
    return git / "info" / "exclude"


def _git_rule(file: Path, prefix: str, depth: int) -> tuple[_Rule, ...]:
    lines = _lines(file)
    if not lines:
        return ()
    from pathspec import GitIgnoreSpec

    return ((prefix, depth, GitIgnoreSpec.from_lines(lines)),)


def _docker_patterns(lines: Iterable[str]) -> Iterable[str]:
    """Anchor Docker's patterns: `a` matches only next to .dockerignore, while git would match it in any folder."""
    for line in lines:
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            negated = pattern.startswith("!")
            path = pattern.lstrip("!").strip().removeprefix("./").lstrip("/")
            # A pattern for a folder applies to everything inside, and `leaves_out` checks files one by one.
            yield from (f"{'!' * negated}/{path}", f"{'!' * negated}/{path.rstrip('/')}/**")


def _lines(path: Path) -> list[str]:
    try:
        # git skips a byte order mark at the start of an ignore file, too.
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}; fix it, or move it away") from None
