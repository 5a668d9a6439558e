"""Turn a user's dictionary into a typed value, or say precisely what is wrong with it.

msgspec decides which values fit a type, and this module writes the message: the place as a dotted path, the expected
value (in the words that AWS's users search for) and the value it got. For an unknown key it names the nearest legal
key and all legal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

from herringbone_contract.errors import DistributionError, near_words

Target = TypeVar("Target", bound=Struct)
Reader = Callable[[object, str], object]

_MAX_GUESSED_CHARS = 80
# Words that users try first as strategies, with the key that they mean.
_ALIASES = {
    **dict.fromkeys(("torch", "torchrun", "ddp", "pytorch", "elastic"), "torch_distributed"),
    **dict.fromkeys(("smddp", "dataparallel", "smp", "modelparallel"), "smdistributed"),
    **dict.fromkeys(("mpirun", "openmpi"), "mpi"),
}
# Sentences that AWS's SDK raises, by key. People find their answers by searching for them.
_KNOWN_SENTENCES = {
    "partitions": "The number of partitions must be a positive integer.",
    "microbatches": "The number of microbatches must be a positive integer.",
    "active_microbatches": "The number of active_microbatches must be a positive integer.",
    "memory_weight": "memory_weight must be between 0.0 and 1.0!",
    "partition_file": "'partition_file' must be a str.",
    "smdistributed": "smdistributed strategy requires a dictionary.",
}


# The longest text that a message repeats as a number.
_MAX_QUOTED_CHARS = 18


def read(target: type[Target], raw: object, path: str, nested: Mapping[str, Reader] | None = None) -> Target:
    """Return `raw` as a `target`; `nested` reads the fields that are dictionaries themselves.

    >>> from herringbone_contract.strategies import MPI
    >>> read(MPI, {"enabled": True, "processes_per_host": 8}, "distribution.mpi").processes_per_host
    8

    Raises `DistributionError`, with the path of the wrong key or value.
    """
    raw = mapping(raw, path)
    types = _field_types(target)
    for key in raw:
        # Before any value is read: an unknown key is most often a misspelt one.
        if key not in types:
            raise DistributionError(_unknown_key(key, path, tuple(types)))
    values = {}
    for key, value in raw.items():
        field_path = f"{path}.{key}"
        if nested is not None and key in nested:
            values[key] = nested[key](value, field_path)
            _check_text(values[key], field_path)
            continue
        try:
            values[key] = msgspec.convert(value, types[key])
        # The other two are msgspec's for half of a character, and for a value that is nested too deeply.
        except (msgspec.ValidationError, UnicodeEncodeError, RecursionError):
            # `from None`: msgspec's own sentence says less than ours.
            raise DistributionError(_wrong_value(key, value, field_path, types[key])) from None
    return target(**values)


def _check_text(value: object, path: str) -> None:
    """Raise `DistributionError` for half of a character in a text, or in a list of texts, which no file can hold."""
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise DistributionError(
                    f"{path}: has half of a character (a lone surrogate). Got {show(text)}."
                ) from None


def mapping(raw: object, path: str) -> Mapping[str, Any]:
    """Return `raw` if it is a dictionary with text keys. Raises `DistributionError` otherwise."""
    if not isinstance(raw, Mapping):
        sentence = _KNOWN_SENTENCES.get(path.rpartition(".")[2], "a dictionary is expected here.")
        raise DistributionError(f"{path}: {sentence} Got {show(raw)}.")
    for key in raw:
        if not isinstance(key, str):
            raise DistributionError(f"{path}: keys are strings. Got the key {show(key)}.")
    return raw


def show(value: object) -> str:
    """Render a value for a message: short, and with its type, without which `"8"` and `8` look alike."""
    # A value can be a whole dict of parameters; its beginning is enough to recognise it.
    try:
        text = repr(value)
    except RecursionError:
        text = "..."
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


@cache
def _field_types(target: type[Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(target)}


def legal_keys(target: type[Struct]) -> tuple[str, ...]:
    """Return the keys a dictionary for `target` may have, in the order of its fields."""
    return target.__struct_fields__


def _unknown_key(key: str, path: str, legal: tuple[str, ...]) -> str:
    alias = _ALIASES.get(key)
    nearest = [alias] if alias in legal else near_words(key, legal)
    key = key if len(key) <= _MAX_GUESSED_CHARS else f"{key[:_MAX_GUESSED_CHARS]}..."
    guess = f" Did you mean {nearest[0]!r}?" if nearest else ""
    known_sentences = {
        "distribution.smdistributed": f"Invalid smdistributed strategy provided: {key}.",
        "distribution.torch_distributed.processes_per_host": (
            "a host has a rank for each GPU, and without GPUs one: for two ranks on a CPU machine write"
            " instance_count=2."
        ),
        "distribution.horovod": "Horovod runs under mpi: write 'mpi': {'enabled': True, 'processes_per_host': N}.",
    }
    sentence = known_sentences.get(path) or known_sentences.get(f"{path}.{key}") or "no such key."
    return f"{path}.{key}: {sentence}{guess} Legal keys here: {', '.join(legal)}."


def _wrong_value(key: str, value: object, path: str, expected: Any) -> str:
    if key == "ddp_port":
        return f"{path}: Invalid port number {value}. It must be an integer from 0 to 65535. Got {show(value)}."
    sentence = _KNOWN_SENTENCES.get(key) or f"{key} must be {_describe(expected)}."
    return f"{path}: {sentence} Got {show(value)}.{_without_quotes(value, expected)}"


def _without_quotes(value: object, expected: Any) -> str:
    """Return how to write a text that the same value without quotes would satisfy, "" for any other value."""
    words = {"true": True, "false": False}
    if not isinstance(value, str) or len(value) > _MAX_QUOTED_CHARS:
        return ""
    number = int(value) if value.isdecimal() and value.isascii() else None
    plain = words.get(value.lower(), number)
    if plain is None:
        return ""
    try:
        msgspec.convert(plain, expected)
    except msgspec.ValidationError:
        return ""
    return f" Write {plain} without quotes."


def _describe(expected: Any) -> str:
    """Describe the values that a type accepts, in words."""
    kind = inspect.type_info(expected)
    if isinstance(kind, inspect.UnionType):
        kind = kind.types[0]  # the other one is UnsetType, which no user can write
    if isinstance(kind, inspect.BoolType):
        return "a value in: [True, False]"
    if isinstance(kind, inspect.LiteralType):
        return f"a value in: {list(kind.values)}"
    if isinstance(kind, inspect.IntType):
        # The bounds of all integers in the grammar; a new bound needs a phrase of its own here.
        return {None: "an integer", 0: "an integer of at least 0", 1: "a positive integer"}[kind.ge]
    if isinstance(kind, inspect.FloatType):
        return f"a number of at least {kind.ge}"
    return "a string"
