"""The parts of `run.py`: programs with a guaranteed time, in the order in which they run. Pure.

    chosen(["throughput", "sums"])                      # the parts whose names are those words, or begin with them
    allowance(530.0, chosen([]), index=0)               # the seconds of a part

A program prints its result as the last line that is JSON. `{"skipped": REASON}` is the result of a program that finds
out itself that it cannot run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_OWN = "benchmarks/gpu/programs"
# pytest's modules, which tests/conftest.py imports.
_TESTS = ("pytest", "pytest_timeout", "hypothesis")


class UnknownPartError(ValueError):
    """A word of `--only` names no part."""


@dataclass(frozen=True)
class Part:
    """One part: its name, its program with the arguments on a device and in a dry run, and the modules that it needs.

    `seconds` are guaranteed: no part before it can use them up. `device` and `tiny` are appended to `common`.
    """

    name: str
    seconds: int
    program: str
    common: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    tiny: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def command(self, *, dry: bool) -> tuple[str, ...]:
        """Return the program and its arguments, without Python.

        >>> Part("a", 9, "a.py", common=("--x",), tiny=("--steps", "1")).command(dry=True)
        ('a.py', '--x', '--steps', '1')
        """
        return (self.program, *self.common, *(self.tiny if dry else self.device))


def _measured(name: str, seconds: int, program: str, *common: str, needs: tuple[str, ...] = ()) -> Part:
    """Return a part of a program of ours, which has `--device` and `--tiny`."""
    return Part(name, seconds, f"{_OWN}/{program}", common, ("--device", "cuda"), ("--device", "cpu", "--tiny"), needs)


def _optimizers(model: str, seconds: int, repeats: int) -> Part:
    return Part(
        f"optimizers/{model}",
        seconds,
        "benchmarks/optimizers/run.py",
        device=("--model", model, "--device", "cuda", "--repeats", str(repeats)),
        # BERT-large's shapes take seconds on a CPU.
        tiny=("--model", "resnet50", "--device", "cpu", "--repeats", "1"),
    )


def _memory(layouts: Sequence[str], models: Sequence[str]) -> Part:
    words = ("--layouts", *layouts)
    return Part(
        "memory",
        40,
        "benchmarks/plan/run.py",
        device=("--models", *models, *words, "--device", "cuda", "--size", "full", "--batch", "8", "--budget", "3"),
        tiny=("--models", "lstm", *words, "--device", "cpu", "--size", "small", "--steps", "4", "--budget", "1"),
    )


# The guaranteed seconds add up to nine minutes less ten seconds, which the start takes.
PARTS = (
    _measured("quickstart", 45, "quickstart.py", needs=("sklearn", "tqdm")),
    _measured("tests/version-1", 65, "device_tests.py", "tests/gpu/test_pipeline.py", needs=_TESTS),
    _measured("throughput/bert-large", 75, "throughput.py", "--model", "bert-large", needs=("transformers",)),
    _measured("throughput/resnet50", 50, "throughput.py", "--model", "resnet50"),
    _optimizers("resnet50", 20, repeats=20),
    _optimizers("bert-large", 25, repeats=10),
    _measured("precision", 35, "savers.py", "--compare", "precision"),
    _measured("offload", 30, "savers.py", "--compare", "offload"),
    _measured("sums", 50, "sums.py"),
    _memory(["one"], ["resnet50", "lstm"]),
    _measured("division", 15, "division.py"),
    _measured("tests/version-2", 80, "device_tests.py", "tests/gpu/test_equality.py", needs=_TESTS),
)


def chosen(only: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts that the words of `--only` name; all of them where there is no word.

    >>> [part.name for part in chosen(["optimizers", "sums"])]
    ['optimizers/resnet50', 'optimizers/bert-large', 'sums']

    Raises `UnknownPartError` for a word that names none.
    """
    for word in only:
        if not any(_is_named(part, word) for part in PARTS):
            raise UnknownPartError(f"--only {word}: no such part; there are {', '.join(part.name for part in PARTS)}")
    return tuple(part for part in PARTS if not only or any(_is_named(part, word) for word in only))


def _is_named(part: Part, word: str) -> bool:
    return part.name == word or part.name.startswith(f"{word}/")


def allowance(left: float, parts: Sequence[Part], index: int) -> float:
    """Return the seconds that part number `index` may take, of `left` seconds for it and all later parts.

    Later parts keep what they are guaranteed. What earlier ones have not used is there for this one.

    >>> allowance(100.0, [Part("a", 30, "a.py"), Part("b", 40, "b.py")], index=0)
    60.0

    A part gets its own guaranteed seconds at most where time is short, and nothing once all of it is used up.
    """
    later = sum(part.seconds for part in parts[index + 1 :])
    return max(0.0, min(left, max(left - later, float(parts[index].seconds))))
