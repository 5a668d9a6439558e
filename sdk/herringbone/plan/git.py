"""The repository that a job's code is fetched from: the option `git_config`, and its check. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from herringbone_contract.constants import MASK
from herringbone_contract.errors import OptionError

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_BRANCH = re.compile(r"(?!-)[^\s:+~^?*\[\\]+")


class GitConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The repository to fetch code from: `git_config={"repo": "https://github.com/me/model", "branch": "main"}`.

    Names are those of AWS's SDK. `token`, or `username` and `password`, are for https. Without them git uses its own
    credentials: a credential helper or an SSH agent.
    """

    repo: str
    branch: str | None = None
    commit: str | None = None
    username: str | None = None
    password: str | None = None
    token: str | None = None
    two_factor: bool = msgspec.field(name="2FA_enabled", default=False)

    @property
    def masked(self) -> GitConfig:
        """The same settings with `password` and `token` masked."""
        hidden = {name: MASK for name in ("password", "token") if getattr(self, name) is not None}
        return msgspec.structs.replace(self, **hidden)


def check_git_config(config: GitConfig) -> None:
    """Raise `OptionError` for values that git would misread, or that would show a secret to other processes. Pure."""
    try:
        address = urlsplit(config.repo)
    except ValueError as error:
        raise OptionError(f"git_config: repo {config.repo!r} is no address of a repository: {error}") from None
    if config.repo.startswith("-") or "::" in config.repo:
        raise OptionError(f"git_config: repo {config.repo!r} is no address of a repository")
    if address.password is not None or (address.scheme in ("http", "https") and address.username is not None):
        raise OptionError(
            f"git_config: repo names a user or a secret, and would show it to every process here; write "
            f"{address.scheme}://{address.hostname}{address.path}, and give username, password or token next to it"
        )
    if config.branch is not None and not _BRANCH.fullmatch(config.branch):
        raise OptionError(f"git_config: branch {config.branch!r} is no name of a branch")
    if config.commit is not None and not _COMMIT.fullmatch(config.commit):
        raise OptionError(f"git_config: commit {config.commit!r} is no hash; give its first 7 to 40 digits")
    if (config.password or config.token) and address.scheme != "https" and not _is_local(address.hostname):
        raise OptionError("git_config: password and token are for https:// addresses; others send them in the open")
    if config.password and not config.token and (config.two_factor or not config.username):
        needed = "a token, not a password, under 2FA_enabled" if config.two_factor else "username next to password"
        raise OptionError(f"git_config: needs {needed}")


def _is_local(host: str | None) -> bool:
    return host in ("localhost", "127.0.0.1", "::1")
