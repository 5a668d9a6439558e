"""The words of `--faults`: the rate of faults, and the costs that the user knows better than we do. Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from herringbone_contract.errors import OptionError

_EXAMPLE = "--faults mtbf=30d,save=20s,every=500"
_AMOUNT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_PART = re.compile(rf"({_AMOUNT.pattern})(ms|s|m|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


_YEAR = 366 * 86400.0
_ANY, _SOME = (0.0, _YEAR), (1e-3, _YEAR)
_TIMES = {
    # Less than a fault a second, and more than one in a thousand years: the rest is a slip of the keyboard.
    "mtbf": (1.0, 1000 * _YEAR),
    "step": _SOME,
    "save": _SOME,
    "blocked": _ANY,
    "load": _ANY,
    "detect": _ANY,
    "restart": _ANY,
}


class FaultWords(Struct, frozen=True, kw_only=True):
    """The words of `--faults`, None for those that it leaves out. Times are in seconds.

    - `mtbf` is the mean time between two faults of one host; of all hosts together with `of_job`.
    - `every` is the script's own working time between two saves, or `every_steps` its optimizer steps.
    - `step`, `save` and `blocked` are the seconds of a step, of a save, and of its part that stops training.
    - `detect`, `restart` and `load` follow a fault: until it is noticed, until the script trains but for its
      checkpoint, and for the checkpoint.
    """

    mtbf: float
    of_job: bool = False
    every: float | None = None
    every_steps: int | None = None
    step: float | None = None
    save: float | None = None
    blocked: float | None = None
    load: float | None = None
    detect: float | None = None
    restart: float | None = None


def parse_faults(text: str) -> FaultWords:
    """Return what a text such as `mtbf=30d,save=20s` says.

    >>> parse_faults("mtbf=12h/job,every=500").every_steps
    500

    Raises `OptionError` for a text that says nothing, twice, or what no machine does.
    """
    words: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in (*_TIMES, "every"):
            raise OptionError(
                f"--faults: {part!r} is none of {', '.join((*_TIMES, 'every'))}, each as NAME=TIME; write {_EXAMPLE}"
            )
        if name in words:
            raise OptionError(f"--faults: {name} stands twice; write it once")
        words[name] = value
    if "mtbf" not in words:
        raise OptionError(
            f"--faults: mtbf, the mean time between two faults of a host, is missing; write {_EXAMPLE}, or mtbf=12h/job"
        )
    mtbf, slash, owner = words.pop("mtbf").partition("/")
    if slash and owner not in ("host", "job"):
        raise OptionError(f"--faults: mtbf={mtbf}/{owner}: write mtbf={mtbf}/host, which is meant without it, or /job")
    every = words.pop("every", None)
    steps = int(every) if every is not None and re.fullmatch("[0-9]{1,12}", every) else None
    if steps == 0:
        raise OptionError("--faults: every=0: a job saves after 1 step at the earliest; write every=500 or every=10m")
    times = {name: _seconds(name, value, _TIMES[name]) for name, value in words.items()}
    if times.get("blocked", 0.0) > times.get("save", _YEAR):
        raise OptionError("--faults: blocked is the part of save in which training stops; it cannot be longer")
    return FaultWords(
        mtbf=_seconds("mtbf", mtbf, _TIMES["mtbf"]),
        of_job=owner == "job",
        every=None if every is None or steps else _seconds("every", every, _SOME),
        every_steps=steps,
        **times,
    )


def _seconds(name: str, text: str, bounds: tuple[float, float]) -> float:
    """Return the seconds of a time such as 90s, 350ms or 1h30m, with decimals in any part."""
    if not re.fullmatch(f"(?:{_PART.pattern})+", text):
        hint = f"{text} of which unit? " if _AMOUNT.fullmatch(text) else ""
        also = " or a number of steps" if name == "every" else ""
        raise OptionError(f"--faults: {name}={text}: {hint}write a time as 350ms, 20s, 10m, 12h or 30d{also}")
    seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))
    least, most = bounds
    if not least <= seconds <= most:
        raise OptionError(f"--faults: {name}={text}: give {least:g} s to {most / 86400:g} d; this is {seconds:g} s")
    return seconds
