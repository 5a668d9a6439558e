"""Feed broken texts and values to every decoder of the client, the entry program and the contract.

    python -m tests.campaigns.decoders [--inputs 1000000] [--seed 1] [--only NAME]

Each input is an example of its decoder with random damage: bytes, JSON values, keys, nesting, numbers and characters. A
decoder may return a value or raise an error of ours whose text can be printed; anything else has escaped. The last line
of the output is JSON. Exits 1 if anything escaped. The short form runs with the tests (`test_short.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from herringbone_contract.errors import HerringboneError
from tests.campaigns.decoder_table import Decoder, all_decoders

# Values and texts that parsers stumble over.
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**63,
        -(2**70),
        10**400,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
        "",
        " ",
        "\0",
    ),
    *(
        "\ud800",
        "é\u202e",
        "x" * 300,
        "²",
        "\u0661",
        "[",
        "{}",
        "null",
        "true",
        "-1",
        "1e999",
        "${x}",
        "../..",
        "-o",
        "a=b",
        "a b",
    ),
    *([], {}, [None], [[]], {"": None}, {"a": {"a": {"a": 1}}}, [1, "a", None], {"enabled": True}, ["a", "a"]),
]
WORDS = [
    *(
        '"',
        "'",
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        "\\",
        "\n",
        "\r",
        "\t",
        "\0",
        "#",
        "&a ",
        "*a",
        "!!int ",
        "!!binary ",
        "<<: ",
        "- ",
    ),
    *(
        "NaN",
        "Infinity",
        "1e999",
        "9" * 5000,
        "-",
        "null",
        "\\ud800",
        "\\u0000",
        "\ud800",
        "\udcff",
        "\u202e",
        "²",
        "\u0661",
        "é",
        " ",
    ),
    *("[" * 3000, "{a: " * 500, '{"a":' * 3000, "=", "|", "%", "/", "..", "~", "0x", "--", "-o", "://", "@", "?", ": "),
]


def damaged_text(text: str, chance: random.Random) -> str:
    """Return the text with one to four random changes."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.choice((0, 0, 1, 1, 3, 20)))
        kind = chance.random()
        if kind < 0.25:
            middle = ""
        elif kind < 0.6:
            middle = chance.choice(WORDS)
        elif kind < 0.8:
            other = chance.randint(0, len(text))
            middle = text[other : other + chance.randint(0, 30)]
        else:
            middle = chr(chance.choice((chance.randint(0, 127), chance.randint(0, 0x10FFFF))))
        text = text[:start] + middle + text[end:]
    return text


def damaged_value(value: Any, chance: random.Random) -> Any:
    """Return a copy of a JSON value with one to three random changes."""
    for _ in range(chance.randint(1, 3)):
        value = _changed(value, chance)
    return value


def _changed(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.85:
        copy = dict(value)
        key = chance.choice(list(copy))
        kind = chance.random()
        if kind < 0.1:
            del copy[key]
        elif kind < 0.2:
            renamed = chance.choice((damaged_text(key, chance) if isinstance(key, str) else key, "", 1, None, "a"))
            copy[renamed] = copy.pop(key)
        elif kind < 0.3:
            copy[chance.choice(list(copy))] = copy[key]
        else:
            copy[key] = _changed(copy[key], chance)
        return copy
    if isinstance(value, list) and value and chance.random() < 0.7:
        copy = list(value)
        place = chance.randrange(len(copy))
        copy[place : place + chance.randint(0, 2)] = [_changed(copy[place], chance)]
        return copy
    if isinstance(value, str) and chance.random() < 0.5:
        return damaged_text(value, chance)
    if chance.random() < 0.02:
        nested: Any = 1
        for _ in range(chance.choice((50, 2000))):
            nested = chance.choice(({"a": nested}, [nested]))
        return nested
    return chance.choice(VALUES)


def damaged(decoder: Decoder, chance: random.Random) -> Any:
    """Return one input of a decoder."""
    example = chance.choice(decoder.examples)
    if decoder.kind == "value":
        return damaged_value(example, chance)
    text = example
    if decoder.kind == "json" and chance.random() < 0.6:
        try:
            text = json.dumps(damaged_value(json.loads(example), chance))
        except (RecursionError, TypeError, ValueError):
            # The example is YAML, or the value no JSON: a key that is none, or nesting beyond what `dumps` can write.
            text = damaged_text(example, chance)
    else:
        text = damaged_text(example, chance)
    if not decoder.as_bytes:
        return text
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if data and chance.random() < 0.3:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def _shown(given: Any) -> str:
    try:
        return ascii(given)[:300]
    except RecursionError:
        return "a value that is nested too deeply to show"


def escaped(decoder: Decoder, given: Any) -> str | None:
    """Decode one input; return what escaped, None if all is well."""
    try:
        decoder.decode(given)
    except HerringboneError as error:
        try:
            str(error).encode()
        except UnicodeEncodeError as unprintable:
            return f"the text of {type(error).__name__} cannot be printed: {unprintable}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {str(error)[:200]!a}"
    return None


def campaign(decoders: Sequence[Decoder], inputs: int, seed: int) -> dict[str, Any]:
    """Give `inputs` inputs to all decoders, by their weights; return figures and what escaped."""
    weights = sum(decoder.weight for decoder in decoders)
    figures: dict[str, Any] = {}
    found: dict[str, list[list[str]]] = {}
    for decoder in decoders:
        chance = random.Random(f"{seed} {decoder.name}")
        begin, slowest = time.monotonic(), 0.0
        count = max(1, round(inputs * decoder.weight / weights))
        for _ in range(count):
            given = damaged(decoder, chance)
            before = time.monotonic()
            problem = escaped(decoder, given)
            slowest = max(slowest, time.monotonic() - before)
            if problem is not None:
                problems = found.setdefault(decoder.name, [])
                # One example of each kind.
                if problem[:60] not in [other[:60] for other, _ in problems]:
                    problems.append([problem, _shown(given)])
        seconds = time.monotonic() - begin
        figures[decoder.name] = {"inputs": count, "seconds": round(seconds, 1), "slowest_ms": round(1000 * slowest, 1)}
        print(f"{decoder.name:<28} {count:>8} inputs {seconds:>7.1f} s, slowest {1000 * slowest:.1f} ms", flush=True)
    total = sum(figure["inputs"] for figure in figures.values())
    return {"inputs": total, "seed": seed, "decoders": figures, "escaped": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="NAME", help="only decoders whose name contains this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of `re`, for damaged patterns
    with tempfile.TemporaryDirectory(prefix="decoders-") as folder:
        decoders = [one for one in all_decoders(Path(folder)) if arguments.only is None or arguments.only in one.name]
        result = campaign(decoders, arguments.inputs, arguments.seed)
    print(json.dumps(result))
    return 1 if result["escaped"] else 0


if __name__ == "__main__":
    sys.exit(main())
