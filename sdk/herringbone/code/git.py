"""Fetch one commit of a git repository with the `git` program, without prompts and without secrets as arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from herringbone.plan.git import GitConfig
from herringbone.plan.source import SourceCode
from herringbone_contract.constants import MASK
from herringbone_contract.errors import InputError, UnsupportedError
from herringbone_contract.masking import masked_text

_FULL_COMMIT_CHARS = 40
_ANY_USER = "x-access-token"  # GitHub and GitLab check the token alone
# Without this list, an address such as `ext::...` would run a command.
_PROTOCOLS = "file:git:http:https:ssh"
# Give up a server after a minute below one byte per second.
_STALLED = ("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60")
# git runs this program to ask for username and password. It reads them from the environment, so the file has no secret.
_ANSWERS = """#!/bin/sh
case "$1" in
    Username*) printf '%s\\n' "$HERRINGBONE_GIT_USERNAME" ;;
    *) printf '%s\\n' "$HERRINGBONE_GIT_PASSWORD" ;;
esac
"""
_LAST_WORDS_CHARS = 500


class Checkout(NamedTuple):
    """The files of one commit, with repository and hash."""

    folder: Path
    repo: str
    commit: str

    @property
    def revision(self) -> str:
        return f"{self.repo}@{self.commit}"


@contextmanager
def checked_out(config: GitConfig | None) -> Iterator[Checkout | None]:
    """Fetch the commit that `git_config` names, and keep it for the block; yield None without `git_config`."""
    if config is None:
        yield None
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="herringbone-") as scratch:
        yield fetch_code(config, Path(scratch))


def fetch_code(config: GitConfig, into: Path) -> Checkout:
    """Fetch one commit into a private folder.

    >>> fetch_code(GitConfig("https://github.com/me/model", branch="main"), scratch).commit[:8]      # doctest: +SKIP
    '5f70bf18'

    This is the newest commit of `branch` (a branch or tag; default: the repository's default branch), or `commit`,
    which has to be in the history of `branch` if both are given. Submodules are not fetched. Raises `InputError` with
    git's message, `UnsupportedError` without git.
    """
    git = _Git(config, into)
    # Without a template no hook of the user's gets into the repository, where the checkout would run it.
    git.run("init", "--quiet", "--template=", str(git.folder))
    if config.commit is None:
        git.fetch("--depth=1", config.branch or "HEAD")
        revision = "FETCH_HEAD"
    else:
        revision = _fetch_commit(git, config.commit, config.branch)
    git.run("checkout", "--quiet", "--detach", revision)
    return Checkout(git.folder, config.repo, git.run("rev-parse", "HEAD").strip())


def check_inside(source: SourceCode, checkout: Path) -> None:
    """Raise `InputError` for code outside of the repository."""
    if source.archive is not None:
        raise InputError(f"source_dir: {source.archive} together with git_config; give a folder of the repository")
    root = os.path.realpath(checkout)
    for path in (source.folder, *source.dependencies):
        real = os.path.realpath(str(path))
        if real != root and not real.startswith(f"{root}{os.sep}"):
            raise InputError(
                f"source_dir, entry_point, dependencies: {os.path.relpath(str(path), checkout)} is not in "
                "the repository of git_config; give paths that count from its root"
            )


def _fetch_commit(git: _Git, commit: str, branch: str | None) -> str:
    if branch is not None:
        # The whole history, not `--depth=1`: the commit may lie anywhere in it.
        git.fetch(branch)
        git.run("merge-base", "--is-ancestor", commit, "FETCH_HEAD", otherwise=f"{commit} is not on {branch}")
        return commit
    if len(commit) >= _FULL_COMMIT_CHARS:
        with suppress(InputError):  # not every server allows fetching a commit by its hash
            git.fetch("--depth=1", commit)
            return "FETCH_HEAD"
    # A short hash, or a server that refuses hashes: fetch all branches, one of which holds the commit.
    git.fetch("--tags", "+refs/heads/*:refs/remotes/origin/*")
    return commit


class _Git:
    """The `git` program in one new repository, `folder`."""

    def __init__(self, config: GitConfig, into: Path) -> None:
        self.folder = into / "code"
        self._config = config
        self._secret = config.token or config.password
        self._environ = {
            **os.environ,
            # The program that answers git recognises the questions by their English words.
            "LC_ALL": "C",
            # git opens the terminal itself, so an empty standard input does not keep it from asking there.
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": _PROTOCOLS,
        }
        self._settings: tuple[str, ...] = _STALLED
        if self._secret is not None:
            answers = into / "answers"
            answers.write_text(_ANSWERS)
            answers.chmod(0o700)
            self._environ |= {
                "GIT_ASKPASS": str(answers),
                "HERRINGBONE_GIT_USERNAME": config.username or _ANY_USER,
                "HERRINGBONE_GIT_PASSWORD": self._secret,
            }
            # Otherwise the user's credential helper would answer first, and store this secret afterwards.
            self._settings += ("-c", "credential.helper=")

    def fetch(self, *arguments: str) -> None:
        # `--` ends the options, so that no address or branch can be read as one.
        options = [argument for argument in arguments if argument.startswith("-")]
        names = [argument for argument in arguments if not argument.startswith("-")]
        self.run("-C", str(self.folder), "fetch", "--quiet", *options, "--", self._config.repo, *names)

    def run(self, *arguments: str, otherwise: str | None = None) -> str:
        """Run a git command and return its output; `otherwise` is the message where git itself explains nothing."""
        import subprocess

        folder = () if arguments[0] in ("init", "-C") else ("-C", str(self.folder))
        try:
            result = subprocess.run(
                ["git", *self._settings, *folder, *arguments],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except FileNotFoundError:
            raise UnsupportedError("git_config: there is no program git on PATH; install it") from None
        if result.returncode:
            message = self._without_secret(result.stderr).strip()[-_LAST_WORDS_CHARS:]
            ref = self._config.commit or self._config.branch
            at = "" if ref is None else f" at {ref}"
            raise InputError(f"git_config: {self._config.repo}{at} cannot be fetched: {otherwise or message}")
        return result.stdout

    def _without_secret(self, message: str) -> str:
        """Return git's message without the secret, which a server may repeat, in addresses with %XX.

        The whole message, before it is cut: half of a secret would not be recognised.
        """
        if self._secret:
            for text in {self._secret, quote(self._secret, safe=""), quote(self._secret), quote_plus(self._secret)}:
                message = message.replace(text, MASK)
        return masked_text(message)
