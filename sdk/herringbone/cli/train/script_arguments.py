"""Read the words after `--` as hyperparameters, which the script gets as they were typed. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from herringbone_contract.errors import OptionError
from herringbone_contract.hyperparameters import is_name

# A letter has to follow the dash: -0.5 is a value and not a name.
_NAME = re.compile(r"--\w|-[^\W\d]")


def parse_script_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Read `--name value`, `--name=value` and `-n value` as hyperparameters, which the script gets as they were typed.

    >>> parse_script_arguments(["--epochs", "3", "--name=run", "--shift", "-0.5", "--lr", "1e-3"])
    {'epochs': 3, 'name': 'run', 'shift': -0.5, 'lr': '1e-3'}

    Raises `OptionError` for words that the script would get as something else.
    """
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _NAME.match(word):
            raise OptionError(
                f"{word!r}: hyperparameters have names; write --name {word} (a job has no positional arguments)"
            )
        argument, equals, value = word.partition("=")
        name = _hyperparameter_name(argument)
        if name in values:
            raise OptionError(f"{argument}: stands twice, and a hyperparameter has one value; write it once")
        if not equals:
            # The next word is the value, unless it is the next name.
            if not rest or _NAME.match(rest[0]):
                raise OptionError(
                    f"{argument}: has no value, and a hyperparameter always has one; let the script take"
                    f" {argument} true, or write {argument}=VALUE for a value that begins with a dash"
                )
            value = rest.pop(0)
        values[name] = _value(value)
    return values


def _hyperparameter_name(argument: str) -> str:
    """Return the name of `--name` or `-n`; the script gets names of one letter with one dash, as in AWS's images."""
    name = argument.lstrip("-")
    if not is_name(name):
        raise OptionError(f"{name!r}: a name has no white space; write --name value as two words")
    delivered = f"--{name}" if len(name) > 1 else f"-{name}"
    if argument != delivered:
        kind = "several letters" if len(name) > 1 else "one letter"
        raise OptionError(
            f"{argument}: a name of {kind} reaches the script as {delivered}; write {delivered}, and let the script"
            f" take {delivered}"
        )
    return name


def _value(text: str) -> Any:
    """Return a number if the script would get the same text, else the text."""
    for number in (int, float):
        try:
            if str(number(text)) == text and abs(number(text)) <= sys.float_info.max:
                return number(text)
        except ValueError:
            continue
    return text
