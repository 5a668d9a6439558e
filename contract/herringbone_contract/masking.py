"""Make text fit to be shown or stored: secrets are masked, and control characters are shown as escapes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from herringbone_contract.constants import MASK

# Many harmless ones are called tokenizer, max_tokens or keys, so TOKEN and KEY count as whole words only.
_SECRET_WORD = re.compile(
    r"SECRET|PASSWORD|PASSWD|CREDENTIAL|(?:API|ACCESS)_?KEY|(?<![A-Z])(?:TOKEN|KEY)(?![A-Z])", re.IGNORECASE
)

# postgres://user:secret@host, and https://token@host, where the user's name is the secret.
# A match begins where a word begins: a try at each letter of a long word would take the square of its length.
_ADDRESS = re.compile(r"((?<![a-z0-9+.-])[a-z0-9+.-]*://[^\s/:@'\"]*):[^\s/'\"]+@", re.IGNORECASE)
_ADDRESS_WITH_TOKEN = re.compile(r"(\bhttps?://)[^\s/:@'\"]+@", re.IGNORECASE)
# NAME=value and --name=value, also in a query; then --name value.
_ASSIGNED = re.compile(r"((?<![\w.-])[\w.-]+)(=)(\"[^\"]*\"|'[^']*'|[^\s&;,\"']+)")
_FLAG = re.compile(r"(?<!\S)(--?[A-Za-z][\w.-]*)(\s+)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)")
# Of an HTTP header: credentials behind their scheme, and the value of a header with a secret's name.
_SCHEME = re.compile(r"(\b(?:Bearer|Basic|Digest)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_HEADER = re.compile(
    r"((?<![\w.-])(?:Authorization:\s*(?:[a-z]+\s+)?|[a-z][\w-]*-(?:Token|Key|Secret):\s*))[^\s\"']+", re.IGNORECASE
)
_IS_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")


def masked_text(text: str) -> str:
    """Return a text with the secrets of addresses, of `NAME=value` and of `--name value` replaced.

    >>> masked_text("postgres://me:hunter2@db/x -x HF_TOKEN=abc -x EPOCHS=3")
    'postgres://me:******@db/x -x HF_TOKEN=****** -x EPOCHS=3'
    """
    text = _ADDRESS_WITH_TOKEN.sub(rf"\1{MASK}@", _ADDRESS.sub(rf"\1:{MASK}@", text))
    text = _HEADER.sub(rf"\1{MASK}", _SCHEME.sub(rf"\1{MASK}", text))
    return _FLAG.sub(_masked_value, _ASSIGNED.sub(_masked_value, text))


def masked_texts(value: Any, *, secret: bool = False) -> Any:
    """Return JSON values with the secrets in all texts replaced; with `secret`, with all texts replaced.

    >>> masked_texts({"db": {"address": "redis://:abc@host"}, "args": ["--api-key", "abc", "--lr", "3"]})
    {'db': {'address': 'redis://:******@host'}, 'args': ['--api-key', '******', '--lr', '3']}
    """
    if isinstance(value, str):
        return _masked_value_text(value) if secret else masked_text(value)
    if isinstance(value, Mapping):
        return {name: masked_texts(item, secret=secret) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        # A word after a flag is the flag's value.
        flags = ["", *value]
        return [
            masked_texts(item, secret=secret or _is_secret_flag(flag)) for flag, item in zip(flags, value, strict=False)
        ]
    return value


def masked_hyperparameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters, encoded or not, with every text under a secret-sounding name replaced, at any depth.

    >>> masked_hyperparameters({"api_key": "abc", "max_tokens": "512", "hub_token": '"abc"', "key": 3})
    {'api_key': '******', 'max_tokens': '512', 'hub_token': '"******"', 'key': 3}
    """
    return {name: _masked_named(value, secret=bool(_SECRET_WORD.search(name))) for name, value in values.items()}


def is_mask(value: object) -> bool:
    """Return True if a value is the mask, encoded or not."""
    return value in (MASK, json.dumps(MASK))


def _masked_named(value: Any, *, secret: bool) -> Any:
    """Return a value, encoded or not, with the texts under secret-sounding names of its dicts replaced."""
    if isinstance(value, str):
        if not value.startswith(("{", "[", '"')):
            return masked_texts(value, secret=secret)
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return masked_texts(value, secret=secret)
        hidden = _masked_named(decoded, secret=secret) if not isinstance(decoded, str) else None
        if hidden is None:
            hidden = MASK if secret else masked_text(decoded)
        # The text as it was written, unless it has a secret.
        return value if hidden == decoded else json.dumps(hidden)
    if isinstance(value, Mapping):
        return {
            name: _masked_named(item, secret=secret or bool(_SECRET_WORD.search(str(name))))
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [_masked_named(item, secret=secret) for item in value]
        return masked_texts(items, secret=secret)
    return value


def _masked_value_text(value: str) -> str:
    # An encoded number or switch is a text as well, and no secret.
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return MASK
    return json.dumps(MASK) if isinstance(decoded, str) else value


def _masked_value(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    return f"{name}{between}{MASK}" if _SECRET_WORD.search(name) and not _is_number(value) else match[0]


def _is_secret_flag(word: object) -> bool:
    return isinstance(word, str) and bool(_IS_FLAG.fullmatch(word) and _SECRET_WORD.search(word))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def printable(text: str, keep: str = "") -> str:
    r"""Return `text` with control characters but those in `keep`, and bytes that are no UTF-8, as readable escapes.

    >>> printable("weights\x1b[2J\n")
    'weights\\x1b[2J\\n'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else ascii(letter)[1:-1] for letter in text)
