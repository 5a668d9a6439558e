"""The file of access keys: who may call the service, and with which secret.

    {"keys": [{"name": "ada", "key_id": "HBAK...", "secret": "...", "sees_all": false}]}

The file has the secrets themselves, because a signature can be checked with nothing less. So it must be private.
"""

from __future__ import annotations

import re
import secrets
from io import FileIO
from pathlib import Path

import msgspec

from herringbone_contract.errors import InputError
from herringbone_contract.files import locked, write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class AccessKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One user's key. With `sees_all`, the user sees and stops the jobs of all others, too."""

    name: str
    key_id: str
    secret: str
    sees_all: bool = False

    def __repr__(self) -> str:
        # A traceback or a log must not have the secret.
        return f"AccessKey(name={self.name!r}, key_id={self.key_id!r})"


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[AccessKey] = []


class KeyFile:
    """The keys in the file at `path`, read again when the file changes.

    >>> KeyFile(Path("keys.json")).find("HBAK...")                   # doctest: +SKIP
    AccessKey(name='ada', key_id='HBAK...')
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: tuple[int, int, int] | None = None
        self._keys: dict[str, AccessKey] = {}

    def find(self, key_id: str) -> AccessKey | None:
        """Return a key by its id; None for an unknown one. Raises `InputError` for a file that cannot be used."""
        return self._read().get(key_id)

    def all(self) -> list[AccessKey]:
        """Return all keys, in the file's order; [] while there is no file."""
        return list(self._read().values()) if self.path.exists() else []

    def add(self, name: str, *, sees_all: bool = False) -> AccessKey:
        """Make a key for a user, and write it into the file. Raises `InputError` for a name that has one."""
        if _NAME.fullmatch(name) is None:
            raise InputError(f"key name {name!r}: a name has 1 to 64 letters, digits, '.', '-' or '_'")
        key_id = "HBAK" + "".join(secrets.choice(_ID_LETTERS) for _ in range(16))
        key = AccessKey(name=name, key_id=key_id, secret=secrets.token_urlsafe(30), sees_all=sees_all)
        with self._changing():
            keys = self.all()
            if any(key.name == name for key in keys):
                raise InputError(
                    f"{self.path} has a key for {name!r} already; `herringbone serve keys remove` removes it"
                )
            self._write([*keys, key])
        return key

    def remove(self, name: str) -> None:
        """Remove the key of a user, which counts no more from the next call on. Raises `InputError`."""
        with self._changing():
            keys = self.all()
            rest = [key for key in keys if key.name != name]
            if len(rest) == len(keys):
                raise InputError(f"{self.path} has no key for {name!r}; `herringbone serve keys list` shows the names")
            self._write(rest)

    def _read(self) -> dict[str, AccessKey]:
        try:
            state = self.path.stat()
            mark = (state.st_mtime_ns, state.st_size, state.st_ino)
            if mark == self._state:
                return self._keys
            if state.st_mode & 0o077:
                raise InputError(f"{self.path}: others can read this file of secrets; run chmod 600 {self.path}")
            document = msgspec.json.decode(self.path.read_bytes(), type=_Document)
        except OSError as error:
            raise InputError(
                f"the file of keys {self.path}: {error.strerror}; `herringbone serve keys add NAME` makes it"
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # The error names the place in the file, never a value.
            raise InputError(f"the file of keys {self.path} cannot be read: {error}") from None
        self._state, self._keys = mark, {key.key_id: key for key in document.keys}
        return self._keys

    def _changing(self) -> FileIO:
        """Take the file's lock: of two programs that change it together, the second reads what the first wrote."""
        # Not the file itself, which each change replaces.
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return locked(lock)
        except OSError as error:
            raise InputError(f"the file of keys {self.path} cannot be written: {error.strerror}") from None

    def _write(self, keys: list[AccessKey]) -> None:
        try:
            document = msgspec.json.encode(_Document(keys=keys))
            write_whole(self.path, msgspec.json.format(document, indent=2) + b"\n", synced=True)
        except OSError as error:
            raise InputError(f"the file of keys {self.path} cannot be written: {error.strerror}") from None
