"""The settings of a prediction: what `plan(measure=...)` and the flags of `herringbone plan` say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from herringbone.plan.options.typed import seconds
from herringbone_contract.errors import OptionError
from herringbone_contract.prediction.devices import Device

Positive = Annotated[int, msgspec.Meta(ge=1)]
# A plan lists its hosts. No cloud lends more, and a slip of the keyboard should not fill the memory.
MOST_HOSTS = 100_000
DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_LIMIT = 20


class WhatIf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Changes of a job that are predicted; None leaves the job's own value."""

    batch: Positive | None = None
    instance_type: str | None = None
    instance_count: Annotated[int, msgspec.Meta(ge=1, le=MOST_HOSTS)] | None = None
    distribution: dict[str, Any] | None = None


class Measure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a prediction.

    >>> plan = estimator.plan("data", measure=Measure(steps=10_000, choose=True))      # doctest: +SKIP
    >>> plan.prediction.layouts[0].distribution                                        # doctest: +SKIP
    >>> estimator.plan("data", measure=Measure(what_if={"batch": 64, "instance_count": 4}))     # doctest: +SKIP

    - `steps` is the length of the job in optimizer steps; without it, hyperparameters such as `max_steps` say it.
    - `choose` compares up to `limit` layouts, and `over` names other instance types to compare.
    - `what_if` predicts a change of the job: another `batch` of a rank, `instance_type`, `instance_count` or
      `distribution`. The plan itself stays as it is.
    - `within` is a time in seconds: predict the fewest hosts that train in it.
    - `data` gives a local folder for a channel whose data is elsewhere: {"training": "sample"}.
    - `device` describes the device of the hosts where no table knows it, `dollars_per_hour` the price of a host.
    - `timeout` is the longest time of measuring, in seconds.
    """

    steps: Positive | None = None
    choose: bool = False
    limit: Positive = DEFAULT_LIMIT
    over: tuple[str, ...] = ()
    what_if: WhatIf = WhatIf()
    within: Annotated[float, msgspec.Meta(gt=0.0)] | None = None
    data: dict[str, str] = {}
    device: Device | None = None
    dollars_per_hour: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0.0)] = DEFAULT_TIMEOUT_SECONDS


def parse_device(text: str) -> Device:
    """Return the device that three figures describe.

    >>> parse_device("memory=24GiB,flops=30e12,bandwidth=600e9").memory_bytes >> 30
    24

    `flops` are operations a second in float32, or in another type as `bfloat16=300e12`; `bandwidth` are bytes a second
    of the device's memory; `fraction` is the part of both that training reaches. Raises `OptionError`.
    """
    figures: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name in figures or (name not in _FIGURES and name not in _DTYPES):
            raise OptionError(f"device: {part!r}; write {_EXAMPLE}, each figure once")
        figures[name] = parse_amount(f"device: {name}", value)
    if missing := [name for name in _NEEDED if name not in figures]:
        raise OptionError(f"device: {', '.join(missing)} missing; write {_EXAMPLE}")
    if not 1 <= figures["memory"] <= _MOST_BYTES:
        raise OptionError(f"device: memory: {figures['memory']:g} bytes; give 1 to 1e18")
    rates = {"float32": figures["flops"], **{name: figures[name] for name in _DTYPES if name in figures}}
    if figures.get("fraction", 0.0) > 1:
        raise OptionError(f"device: fraction: {figures['fraction']:g} is more than 1, all of the peak")
    device = Device(
        name="yours",
        memory_bytes=round(figures["memory"]),
        operations_per_second=rates,
        bytes_per_second=figures["bandwidth"],
    )
    return msgspec.structs.replace(device, fraction=figures["fraction"]) if "fraction" in figures else device


_EXAMPLE = "memory=24GiB,flops=30e12,bandwidth=600e9"
# More does not fit into a JSON number of 64 bits.
_MOST_BYTES = 1e18
_NEEDED = ("memory", "flops", "bandwidth")
_FIGURES = (*_NEEDED, "fraction")
_DTYPES = ("float16", "bfloat16", "tf32", "float64")
_UNITS: dict[str, int] = {
    **{f"{letter}ib": 1 << (10 * power) for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", 1)},
    "b": 1,
    "": 1,
}


def parse_amount(name: str, text: str) -> float:
    """Return a positive number that may have a unit of bytes.

    >>> parse_amount("memory", "24GiB"), parse_amount("bandwidth", "600e9")
    (25769803776.0, 600000000000.0)
    """
    number = text.rstrip("aAbBgGiIkKmMtT")
    unit = text[len(number) :].lower()
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise OptionError(f"{name}: {text!r} is no amount; write a number, as 600e9 or 24GiB") from None
    if not 0 < value < float("inf"):
        raise OptionError(f"{name}: {text!r} is not greater than 0")
    return value


def parse_changes(words: tuple[str, ...], read_distribution: Callable[[str], Any]) -> WhatIf:
    """Return what `--what-if NAME=VALUE` changes; `read_distribution` reads the dict, its file or its name.

    >>> parse_changes(("batch=64", "instance-count=4"), dict)
    WhatIf(batch=64, instance_type=None, instance_count=4, distribution=None)
    """
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not value or name not in WhatIf.__struct_fields__:
            raise OptionError(f"--what-if {word}: write NAME=VALUE; names: {', '.join(WhatIf.__struct_fields__)}")
        if name in changes:
            raise OptionError(f"--what-if {name}: stands twice; write it once")
        changes[name] = read_distribution(value) if name == "distribution" else value
    try:
        # Not strict: 64 comes as text.
        return msgspec.convert(changes, WhatIf, strict=False)
    except msgspec.ValidationError as error:
        raise OptionError(f"--what-if: {error}") from None


def parse_within(text: str) -> int:
    """Return the seconds of `--within`, such as 7d; raise `OptionError` for another text, and for no time at all."""
    span = seconds("--within", text)
    if span == 0:
        raise OptionError("--within: 0 seconds train nothing; write 7d or 12h")
    return span


def parse_measure(value: bool | Measure | Mapping[str, Any]) -> Measure | None:
    """Return the settings that the argument `measure` means; None for False.

    >>> parse_measure({"steps": 100}).steps, parse_measure(False)
    (100, None)
    """
    if value is False or value is None:
        return None
    if value is True:
        return Measure()
    try:
        # Also of a `Measure`: the constructor of a struct checks no types.
        members = msgspec.to_builtins(value) if isinstance(value, Measure) else dict(value)
        return msgspec.convert(members, Measure)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise OptionError(f"measure: {error}; give True or Measure(steps=1000)") from None
