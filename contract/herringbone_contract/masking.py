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


def masked_hyperparameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters, encoded or not, with every text under a secret-sounding name replaced.

    >>> masked_hyperparameters({"api_key": "abc", "max_tokens": "512", "hub_token": '"abc"', "key": 3})
    {'api_key': '******', 'max_tokens': '512', 'hub_token': '"******"', 'key': 3}
    """
    return {name: _masked_text(value) if _SECRET_WORD.search(name) else value for name, value in values.items()}


def is_mask(value: object) -> bool:
    """Return True if a value is the mask, encoded or not."""
    return value in (MASK, json.dumps(MASK))


def _masked_text(value: Any) -> Any:
    # A number or a switch is no secret.
    if not isinstance(value, str):
        return value
    try:
        decoded = json.loads(value)
    except ValueError:
        return MASK
    # An encoded number is a text as well, and no secret.
    return json.dumps(MASK) if isinstance(decoded, str) else value


def printable(text: str) -> str:
    r"""Return `text` with control characters, and bytes that are no UTF-8, as escapes that can be read.

    >>> printable("weights\x1b[2J\n")
    'weights\\x1b[2J\\n'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
