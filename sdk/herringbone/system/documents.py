"""Read YAML and JSON as their authors meant them. Pure.

PyYAML reads YAML 1.1, where `no` is false, `1:30` is 90, `010` is 8, `1e-3` is text, a date is an object, and the last
of two equal keys wins in silence. Here a plain word is null, true, false, a number of JSON, or text, as in YAML 1.2. A
key that stands twice is an error, and so is everything that JSON could not hold.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    import yaml

# libyaml's C stack overflows at some ten thousand levels.
_MAX_DEPTH = 100
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
# Each word also with a capital, or in capitals.
_ALL_WORDS = {form: value for word, value in _WORDS.items() for form in (word, word.capitalize(), word.upper())}
_LONGEST_NUMBER = 400
# By the file's first bytes: a byte order mark, or the zeros next to an ASCII character.
_ENCODINGS = (
    (re.compile(rb"\xef\xbb\xbf"), "utf-8-sig"),
    (re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff"), "utf-32"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "utf-16"),
    (re.compile(rb"\0\0\0."), "utf-32-be"),
    (re.compile(rb".\0\0\0", re.DOTALL), "utf-32-le"),
    (re.compile(rb"\0."), "utf-16-be"),
    (re.compile(rb".\0", re.DOTALL), "utf-16-le"),
)
# Our own tag for a plain word that is not text.
_WORD = "!word"


def read_document(text: str, origin: str) -> Any:
    """Return the value of a YAML or JSON text; `origin` names the text in messages.

    >>> read_document("{epochs: 3, lr: 1e-3, country: no, since: 2026-01-31}", "job.yaml")
    {'epochs': 3, 'lr': 0.001, 'country': 'no', 'since': '2026-01-31'}

    Raises `InputError` for a text that is neither, a key that stands twice, a number that is too large, and characters
    that no file could hold.
    """
    try:
        value = _read_json(text) if text.lstrip()[:1] in ("{", "[") else _read_yaml(text)
    except _WrongError as error:
        raise InputError(f"{origin}: {error}") from None
    return value


def decoded(data: bytes, origin: str) -> str:
    """Return the text of a YAML or JSON file, whose first character is ASCII: in UTF-8, UTF-16 or UTF-32, as YAML says.

    >>> decoded("{epochs: 3}".encode("utf-16-le"), "job.yaml"), decoded("a: 1".encode("utf-16"), "job.yaml")
    ('{epochs: 3}', 'a: 1')

    Raises `InputError` for another encoding.
    """
    try:
        return data.decode(next((name for start, name in _ENCODINGS if start.match(data)), "utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{origin}: it is not in UTF-8 ({error}); save it in UTF-8, as with `iconv -f latin1 -t utf-8`"
        ) from None


class _WrongError(ValueError):
    """A document that is well-formed, and says what it cannot mean."""


def _read_json(text: str) -> Any:
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_float=_number, parse_int=_number, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError:
        # YAML's braces look like JSON's.
        return _read_yaml(text)
    except RecursionError:
        raise _WrongError(f"nested deeper than {_MAX_DEPTH} levels") from None
    _check_text(value)
    return value


def _read_yaml(text: str) -> Any:
    import yaml

    loader = _loader()
    try:
        depth = 0
        # Events need no stack, values do.
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                raise _WrongError(f"nested deeper than {_MAX_DEPTH} levels")
        value = yaml.load(text, loader)  # noqa: S506 - the loader builds nothing but plain values
    except yaml.YAMLError as error:
        # PyYAML names the place, and a file that is a text here.
        reason = re.sub(r' in "<\w+ string>",', " at", " ".join(str(error).split()))
        raise _WrongError(f"cannot be read as YAML or JSON: {reason}") from None
    except UnicodeEncodeError:
        raise _WrongError("has half of a character (a lone surrogate)") from None
    _check_text(value)
    return value


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    """Return the class that reads YAML 1.2's core; made on demand, because few commands read YAML."""
    import yaml

    # The C loader, if there is one, is ten times as fast, and an inventory may have hundreds of machines.
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def scalar(_: Any, node: yaml.Node) -> Any:
        # `!!str {a: 1}` gives a mapping the tag of a text.
        is_text = isinstance(node, yaml.ScalarNode)
        if is_text and node.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            return node.value
        if not is_text or node.tag != _WORD:
            raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag} is not read here", node.start_mark)
        return _number(node.value) if _NUMBER.fullmatch(node.value) else _ALL_WORDS[node.value]

    def sequence(loader: Any, node: yaml.SequenceNode) -> list[Any]:
        return loader.construct_sequence(node, deep=True)  # type: ignore[no-any-return]

    def mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
        # Before `<<` is replaced by the pairs of another mapping, which these override.
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                line = key.start_mark.line + 1
                if key.value in lines:
                    where = f"lines {lines[key.value]} and {line}" if lines[key.value] < line else f"line {line}"
                    raise _WrongError(f"{where}: the key {key.value!r} stands twice; keep one")
                lines[key.value] = line
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)  # type: ignore[no-any-return]

    members = {
        "yaml_implicit_resolvers": {},
        # A value that contains itself is an error of PyYAML's, because these are no generators.
        "yaml_constructors": {
            "tag:yaml.org,2002:seq": sequence,
            "tag:yaml.org,2002:map": mapping,
            None: scalar,
        },
    }
    loader: Any = type("Loader", (base,), members)
    words = re.compile("|".join((_NUMBER.pattern, *(re.escape(word) for word in sorted(_ALL_WORDS, reverse=True)))))
    loader.add_implicit_resolver(_WORD, re.compile(f"(?:{words.pattern})$"), None)
    loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("<<$"), ["<"])
    return loader  # type: ignore[no-any-return]


def _number(text: str) -> int | float:
    if len(text) > _LONGEST_NUMBER:
        raise _WrongError(f"the number {text[:20]}... has {len(text)} digits; quote it for text")
    number: int | float = int(text) if text.lstrip("-").isdigit() else float(text)
    # A comparison takes integers that no float can hold, too; `math.isfinite` does not.
    if not abs(number) <= sys.float_info.max:
        raise _WrongError(f"the number {text[:20]} is too large; quote it for text")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise _WrongError(f"{text} is no number of JSON; quote it for text")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise _WrongError(f"the key {key!r} stands twice; keep one")
        values[key] = value
    return values


def _check_text(value: Any) -> None:
    """Refuse lone surrogates, which no file, path or message can hold."""
    seen, rest = set(), [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            if any("\ud800" <= character <= "\udfff" for character in item):
                raise _WrongError(f"{item!a} has half of a character (a lone surrogate)")
        elif isinstance(item, (dict, list)) and id(item) not in seen:
            # Once each: an anchor may be used a thousand times.
            seen.add(id(item))
            rest += [*item.keys(), *item.values()] if isinstance(item, dict) else item
