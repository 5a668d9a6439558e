"""Recognise files that look like secrets, by name or by content."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAMES = frozenset(
    {".env", ".netrc", "_netrc", ".pgpass", ".pypirc", ".git-credentials", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"}
    # Google's command line, and Kaggle's.
    | {"application_default_credentials.json", "kaggle.json"}
)
# secrets.py, credentials.json, client_secret_123.json: words for the whole name, and formats that hold such values.
_TITLE = re.compile(r"(?:secrets?|credentials?|client_secret[^/]*)\.(?:py|json|ya?ml|toml|ini|cfg|csv|txt)")
_ENVIRONMENT_EXAMPLES = frozenset({".env.example", ".env.sample", ".env.template", ".env.dist"})
_AWS_FILES = frozenset({".aws/credentials", ".aws/config"})
_KEY_STORES = (".p12", ".pfx")
# Certificates have these suffixes, too, and a key may follow its certificates, so the whole file is searched.
_KEY_SUFFIXES = (".pem", ".key")
_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----|PuTTY-User-Key-File-")
_HEAD_BYTES = 64
# The key of a Google service account, which is one JSON object of about 2.3 KB.
_ACCOUNT_KEY = re.compile(rb'"private_key"\s*:\s*"-----BEGIN ')
_ACCOUNT_BYTES = 4096
# Room for the certificates of a whole system, which take about 0.2 MB.
_WHOLE_BYTES = 1 << 20


def looks_secret(path: Path) -> bool:
    """Return True if a file looks like credentials or a private key.

    >>> looks_secret(Path("src/.env")), looks_secret(Path("src/.env.example"))
    (True, False)

    Unless the name decides, the file is read: raises `OSError` when that fails.
    """
    real = Path(os.path.realpath(path)) if path.is_symlink() else path
    return _named_secret(path) or _named_secret(real) or _holds_key(path)


def _named_secret(path: Path) -> bool:
    name = path.name.lower()
    if name in _ENVIRONMENT_EXAMPLES:
        return False
    in_folder = f"{path.parent.name}/{path.name}".lower()
    by_name = name in _NAMES or name.startswith(".env.") or name.endswith(_KEY_STORES)
    return by_name or in_folder in _AWS_FILES or _TITLE.fullmatch(name) is not None


def _holds_key(path: Path) -> bool:
    if path.name.lower() in _ENVIRONMENT_EXAMPLES:
        return False
    # A file object takes four times as long, and a code folder may have a thousand files.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if path.suffix.lower() in _KEY_SUFFIXES:
            return _KEY.search(os.read(descriptor, _WHOLE_BYTES)) is not None
        if path.suffix.lower() == ".json":
            return _ACCOUNT_KEY.search(os.read(descriptor, _ACCOUNT_BYTES)) is not None
        return _KEY.match(os.read(descriptor, _HEAD_BYTES).lstrip()) is not None
    finally:
        os.close(descriptor)
