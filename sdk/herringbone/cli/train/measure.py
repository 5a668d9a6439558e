"""The flags of `plan` about predictions, and how their answers are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from herringbone.cli.commands import Decorated

if TYPE_CHECKING:
    from herringbone.prediction.options import Measure
    from herringbone_contract.prediction.answer import Answer

# The flags by the names of their values: the word, and the settings of click's option.
_FLAGS: dict[str, tuple[str, dict[str, Any]]] = {
    "measure": (
        "--measure",
        {"is_flag": True, "help": "run one step of the script here without computing it, and predict the job"},
    ),
    "steps": (
        "--steps",
        {"type": click.IntRange(1), "metavar": "N", "help": "optimizer steps of the job, for its time and cost"},
    ),
    "choose": ("--choose", {"is_flag": True, "help": "compare layouts, the best first; implies --measure"}),
    "limit": (
        "--limit",
        {"type": click.IntRange(1), "metavar": "N", "help": "the number of layouts to show (default: 20)"},
    ),
    "over": (
        "--over",
        {"metavar": "TYPES", "help": "with --choose: other instance types too, as ml.g5.12xlarge,ml.p4d.24xlarge"},
    ),
    "what_if": (
        "--what-if",
        {
            "multiple": True,
            "metavar": "NAME=VALUE",
            "help": "also predict a change: batch, instance_type, instance_count or distribution",
        },
    ),
    "within": (
        "--within",
        {"metavar": "TIME", "help": "also find the fewest hosts that train this in a time, as 7d"},
    ),
    "data": (
        "--measure-data",
        {
            "multiple": True,
            "metavar": "CHANNEL=PATH",
            "help": "a local sample of a channel whose data is elsewhere",
        },
    ),
    "timeout": (
        "--measure-timeout",
        {"metavar": "TIME", "help": "the longest time of measuring (default: 10m)"},
    ),
    "device": (
        "--device",
        {"metavar": "FIGURES", "help": "a device that no table has: memory=24GiB,flops=30e12,bandwidth=600e9"},
    ),
    "dollars_per_hour": (
        "--dollars-per-hour",
        {"type": click.FloatRange(0.0), "metavar": "X", "help": "the price of a host"},
    ),
}


class Measures(NamedTuple):
    """Predictions to make: of the plan itself, None for none, and of its changes, by names in the JSON; titles."""

    base: Measure | None
    others: dict[str, Measure]
    titles: dict[str, str]


def measure_flags(command: Decorated) -> Decorated:
    """Add the flags about predictions: a decorator, whose command gets their values as the dict `measuring`."""
    command = _gathered(command, tuple(_FLAGS))
    for name, (flag, settings) in reversed(_FLAGS.items()):
        command = click.option(flag, name, **settings)(command)
    return command


def read_measures(flags: Mapping[str, Any]) -> Measures:
    """Return what to predict. Raises `OptionError` for a flag whose value is wrong, or that has no effect."""
    # By identity: a price of 0.0 equals False.
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != ()}
    if not given:
        return Measures(None, {}, {})
    # Imported here: most plans have no prediction.
    from msgspec.structs import replace

    from herringbone.plan.options.typed import seconds
    from herringbone.prediction.options import Measure, parse_changes, parse_device, parse_within
    from herringbone_contract.errors import OptionError

    for name, needed in (("limit", "choose"), ("over", "choose")):
        if name in given and "choose" not in given:
            raise OptionError(f"--{name}: goes with --{needed}; add it, or leave this out")
    data = {}
    for word in given.get("data", ()):
        channel, equals, path = word.partition("=")
        if not equals or not channel or not path:
            raise OptionError(f"--measure-data {word}: write CHANNEL=PATH")
        data[channel] = path
    optional: dict[str, Any] = {name: given[name] for name in ("steps", "limit", "dollars_per_hour") if name in given}
    if "timeout" in given:
        optional["timeout"] = float(seconds("--measure-timeout", given["timeout"]))
    if "device" in given:
        optional["device"] = parse_device(given["device"])
    over = tuple(filter(None, (word.strip() for word in given.get("over", "").split(","))))
    base = Measure(choose="choose" in given, over=over, data=data, **optional)
    others = {}
    if "what_if" in given:
        from herringbone.cli.train.request import read_distribution

        change = parse_changes(given["what_if"], read_distribution)
        others["what_if"] = replace(base, what_if=change, choose=False, over=())
    if "within" in given:
        others["within"] = replace(base, within=float(parse_within(given["within"])), choose=False, over=())
    titles = {
        "what_if": f"what if {', '.join(given.get('what_if', ()))}",
        "within": f"fewest hosts within {given.get('within')}",
    }
    return Measures(base, others, titles)


def show_prediction(answer: Answer | None, others: Mapping[str, Answer | None], titles: Mapping[str, str]) -> None:
    """Print the layouts of a search and the predictions of changes, each with the question as its title.

    The plan's own text has its own prediction.
    """
    from herringbone.plan.shown import rows_text
    from herringbone.show.predictions import dict_text, layout_rows, prediction_rows
    from herringbone.show.tables import show_table

    for name, other in others.items():
        if other is not None:
            print(f"\n{titles[name]}:\n{rows_text(prediction_rows(other))}")
    if answer is None or not answer.layouts:
        return
    print()
    rows = layout_rows(answer.layouts)
    show_table(rows, shorten=2, cut=len(rows[0]) - 1)
    best = next((layout for layout in answer.layouts if layout.refusal is None), None)
    if best is not None:
        print(f"\nthe best of them, to paste:\n{dict_text(best)}")


def _gathered(command: Any, names: tuple[str, ...]) -> Any:
    """Return a command function that gets these flags as one dict."""
    import functools

    function: Callable[..., Any] = command

    @functools.wraps(function)
    def gathered(*arguments: Any, **flags: Any) -> Any:
        return function(*arguments, measuring={name: flags.pop(name) for name in names}, **flags)

    return gathered
