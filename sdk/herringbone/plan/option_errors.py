"""Messages about options that are wrong: the place, the value, and what to write instead. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from herringbone_contract.errors import near_words

_SHOWN_CHARS, _SHOWN_NAME_CHARS = 200, 80
# msgspec names JSON's types, and users write Python's.
_WORDS = {"array": "list", "object": "dict", "null": "None"}
_PYTHON_TYPES = {"list": list, "tuple": list, "dict": dict, "str": str, "int": int, "float": float, "bool": bool}
_TYPES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(.*)`")
_MISSING_KEY = re.compile(r"Object missing required field `(.*)`")
_WRONG_CHOICE = re.compile(r"Invalid enum value (.*)")
_WRONG_TYPE = re.compile(r"Expected `(.*)`, got `(.*)`")
# The names, and the entries of lists and dicts, in a place.
_STEPS = re.compile(r"[^.\[\]]+(?![^\[]*\])|\[[^\]]*\]")
# The values of these may be secrets.
_SECRET = ("environment", "git_config", "notify")


def python_words(text: str) -> str:
    """Return msgspec's message in Python's words, and without its quotes.

    >>> python_words("Expected `array | null`, got `object`")
    'expected list, got dict'
    """

    def types(match: re.Match[str]) -> str:
        names = [name for name in match[1].split(" | ") if name != "null" or match[1] == "null"]
        return " or ".join(_WORDS.get(name, name) for name in names)

    text = _TYPES.sub(types, text).replace("`", "")
    return f"{text[0].lower()}{text[1:]}"


def explain(error: msgspec.ValidationError, values: Mapping[str, Any], target: object) -> str:
    """Return msgspec's message with the option in front and its value from `values` behind.

    msgspec writes "Expected `int`, got `str` - at `$.max_run`". `target` is the type that `values` were to have: it
    tells which keys and choices there are.
    """
    problem, _, location = str(error).partition(" - at `")
    if location.startswith("key"):
        # msgspec writes "at `key` in `$.environment`" for a key of a dict.
        problem, location = f"a key is wrong: {python_words(problem)}", location.partition("$.")[2]
    path = location.removeprefix("$.").rstrip("`")
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    if name not in values:
        return python_words(str(error))
    steps = _STEPS.findall(path)
    if "[...]" in steps:
        path = path.replace("[...]", _wrong_key(problem, _value_at(values, steps[: steps.index("[...]")])), 1)
    value = "" if name in _SECRET else f" (given: {shown(values[name])})"
    legal = _legal([inspect.type_info(target)], steps)
    remedy = _remedy(problem, values[name], legal, whole=path == name)
    return f"{path}: {_problem(problem, legal)}{value}{remedy}"


def _value_at(value: Any, steps: Sequence[str]) -> Any:
    """Return the value at a place of what a user gave; None where it is no plain value."""
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and step.startswith("[") and int(step[1:-1]) < len(value):
            value = value[int(step[1:-1])]
        else:
            return None
    return value


def _legal(types: Sequence[inspect.Type], steps: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of a dict, or the values of a choice, at a place of types."""
    for step in ("", *steps):
        types = [part for kind in types for part in _parts(kind, step)]
    words: list[Any] = []
    for kind in types:
        if isinstance(kind, inspect.StructType):
            words += [field.encode_name for field in kind.fields]
        elif isinstance(kind, inspect.LiteralType):
            words += kind.values
        elif isinstance(kind, inspect.TupleType | inspect.VarTupleType | inspect.ListType):
            # Where a list is missing around a dict.
            words += _legal([kind], ["[0]"])
    return tuple(map(str, words))


def _parts(kind: inspect.Type, step: str) -> Sequence[inspect.Type]:
    """Return the types one step below a type, those of a union apart; the step "" stays where it is."""
    if isinstance(kind, inspect.UnionType):
        return [part for each in kind.types for part in _parts(each, step)]
    below: list[inspect.Type] = []
    if not step:
        return [kind]
    if isinstance(kind, inspect.StructType):
        below = [field.type for field in kind.fields if field.encode_name == step]
    elif isinstance(kind, inspect.DictType):
        below = [kind.value_type]
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        below = [kind.item_type]
    return [part for each in below for part in _parts(each, "")]


def _remedy(problem: str, value: object, keys: Sequence[str], *, whole: bool) -> str:
    """Return how to write a value of the wrong type; `whole` is False for a value inside of the option's.

    `keys` are those of a dict that the option takes.
    """
    if (match := _WRONG_TYPE.fullmatch(problem)) is None:
        return ""
    wanted = match[1].split(" | ")
    if not whole:
        return "; write it in quotes" if wanted == ["str"] and match[2] in ("int", "float", "bool") else ""
    if wanted[0] == "array" and "object" not in wanted and isinstance(value, Mapping) and keys:
        return f"; write [{{{', '.join(f'{key!r}: ...' for key in keys)}}}]"
    if "array" in wanted:
        return f"; write [{shown(value)}]" if isinstance(value, str) else ""
    if isinstance(value, str) and value.lower() in ("true", "false") and "bool" in wanted:
        return f"; write {value.capitalize()} without quotes"
    number = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", value)
    return f"; write {value} without quotes" if number and {"int", "float"} & set(wanted) else ""


def _problem(problem: str, legal: Sequence[str]) -> str:
    if match := _UNKNOWN_KEY.fullmatch(problem):
        return f"no such key {shown_name(match[1])!r}{nearest_name(match[1], legal)}; the keys are {', '.join(legal)}"
    if match := _MISSING_KEY.fullmatch(problem):
        return f"the key {match[1]!r} is missing; the keys are {', '.join(legal)}"
    if (match := _WRONG_CHOICE.fullmatch(problem)) and legal:
        return f"{match[1]} is none of {', '.join(map(repr, legal))}{nearest_name(match[1].strip(chr(39)), legal)}"
    return python_words(problem)


def _wrong_key(problem: str, value: object) -> str:
    """Return the key of the entry of a dict that has the wrong type, as "['A']"; "[...]" if nobody can tell."""
    wrong = _WRONG_TYPE.fullmatch(problem)
    choice = _WRONG_CHOICE.fullmatch(problem)
    if isinstance(value, Mapping):
        for key, item in value.items():
            if choice and repr(item) == choice[1]:
                return f"[{shown_name(str(key))!r}]"
            # bool is an int in Python, and not here, so compare the types themselves.
            if wrong and type(item) is not _PYTHON_TYPES.get(wrong[1].split(" | ")[0]):
                return f"[{shown_name(str(key))!r}]"
    return "[...]"


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return what a message asks about the name that a user may have meant; "" without one.

    >>> nearest_name("Gird", ("Random", "Grid"))
    ", did you mean 'Grid'?"
    """
    nearest = near_words(shown_name(name), known)
    if not nearest:
        # Letters of the other case are the commonest slip: name for Name.
        nearest = [other for other in known if other.lower() == name.lower()]
    return f", did you mean {nearest[0]!r}?" if nearest else ""


def unknown_option(name: str, known: Sequence[str], renamed: Mapping[str, str]) -> str:
    """Return the message for an option that does not exist; `renamed` maps names of SDK v1 to those of v2."""
    if name in renamed:
        return f"{name}: renamed in SageMaker's SDK 2; write {renamed[name]}"
    name = shown_name(name)
    nearest = near_words(name, known)
    if nearest:
        return f"{name}: no such option; did you mean {nearest[0]}?"
    return (
        f"{name}: no such option; an argument of the script is given as hyperparameters={{{name!r}: ...}}; "
        f"options are: {', '.join(sorted(known))}"
    )


def shown_name(name: str) -> str:
    """Return the beginning of a name, for a message and for a search of similar names, which is slow for long ones."""
    return name if len(name) <= _SHOWN_NAME_CHARS else f"{name[:_SHOWN_NAME_CHARS]}..."


def shown(value: object) -> str:
    """Return a value's text for a message, cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:
        return "..."
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
