"""Ask git, while a job is submitted, for the commit of the job's code and whether files differ from it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from herringbone.plan.source import SourceCode

# A huge repository on a slow disk must not keep the user waiting.
_PATIENCE_SECONDS = 5.0
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")

Commit = dict[str, Any]


class CommitQuery:
    """Git at work on the question which commit a job's code is; it starts at once.

    >>> query = CommitQuery(plan.source); backend.submit(plan); query.answer()       # doctest: +SKIP
    {'Commit': '5f70bf18...', 'Dirty': False}

    The answer is empty for code outside of a repository, and where git has none. Untracked files count as changes.
    Exactly one of `answer` and `cancel` must be called.
    """

    def __init__(self, source: SourceCode | None) -> None:
        self._known: Commit = {}
        self._git: subprocess.Popen[str] | None = None
        if source is not None and source.revision is not None:
            repository, _, commit = source.revision.rpartition("@")
            self._known = {"Repository": repository, "Commit": commit, "Dirty": False}
        else:
            self._git = _start(source)

    @property
    def is_pointless(self) -> bool:
        """True if the answer is known to be empty."""
        return self._git is None and not self._known

    def answer(self) -> Commit:
        """Wait for git, which has some seconds."""
        if self._git is None:
            return self._known
        try:
            text = self._git.communicate(timeout=_PATIENCE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            self.cancel()
            return {}
        return parse_status(text) if self._git.returncode == 0 else {}

    def cancel(self) -> None:
        """End git, whose answer nobody needs."""
        if self._git is not None:
            self._git.kill()
            self._git.communicate()


def parse_status(text: str) -> Commit:
    """Parse `git status --porcelain=v2 --branch`; the answer is empty before the first commit. Pure.

    >>> parse_status("# branch.oid 5f70bf18\\n# branch.head main\\n? new.py\\n")
    {'Commit': '5f70bf18', 'Dirty': True}
    """
    lines = text.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    return {} if commit == "(initial)" else {"Commit": commit, "Dirty": any(not line.startswith("#") for line in lines)}


def _start(source: SourceCode | None) -> subprocess.Popen[str] | None:
    if source is None or source.folder is None:
        return None
    folder = Path(source.folder)
    # Code outside of a repository costs no process.
    root = next((above for above in (folder, *folder.parents) if os.path.lexists(above / ".git")), None)
    if root is None:
        return None
    inside = [path for path in source.dependencies if Path(path).is_relative_to(root)]
    paths = ["." if source.whole_folder else source.entry_point, *inside]
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    try:
        return subprocess.Popen(
            # `core.fsmonitor` may name a program of the repository.
            [
                "git",
                "-c",
                "core.fsmonitor=false",
                "-C",
                str(folder),
                "status",
                "--porcelain=v2",
                "--branch",
                "--",
                *paths,
            ],
            # Without locks, git leaves the repository as it is.
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError:
        return None
