"""Texts and tables of predictions. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from herringbone.system.sizes import shown_memory
from herringbone.system.times import shown_span
from herringbone_contract.prediction.answer import Answer, Memory, Prediction, Range

_KINDS = ("parameters", "gradients", "states", "activations", "communication", "slack")
_REASON_CHARS = 160
# Shorter parts of a step than this part of it are not worth a word.
_SHOWN_PART = 0.001


def peak_text(memory: Memory) -> str:
    """Return a peak with its kinds, the largest first.

    >>> peak_text(Memory(parameters=2 << 30, states=4 << 30))
    '6.0 GiB (states 4.0 GiB, parameters 2.0 GiB)'
    """
    kinds = sorted(((getattr(memory, kind), kind) for kind in _KINDS), reverse=True)
    parts = ", ".join(f"{kind} {shown_memory(size)}" for size, kind in kinds if size)
    return shown_memory(memory.peak) + (f" ({parts})" if parts else "")


def shown_seconds(seconds: float) -> str:
    """Return a time with three digits, or a long one in its two largest units.

    >>> shown_seconds(0.01234), shown_seconds(2.5), shown_seconds(7500)
    ('12.3 ms', '2.50 s', '2 h 5 min')
    """
    if seconds >= 100:
        return shown_span(seconds)
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s" if seconds >= 10 else f"{seconds:.2f} s"


def shown_rate(per_second: float) -> str:
    """Return samples a second with at least three digits.

    >>> shown_rate(26743.2), shown_rate(2.345)
    ('26,743', '2.35')
    """
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def shown_range(spread: Range) -> str:
    """Return a time with its bounds.

    >>> shown_range(Range(low=1.0, expected=2.0, high=4.0))
    '2.00 s (1.00 s to 4.00 s)'
    """
    if spread.low == spread.high:
        return shown_seconds(spread.expected)
    return f"{shown_seconds(spread.expected)} ({shown_seconds(spread.low)} to {shown_seconds(spread.high)})"


def shown_dollars(spread: Range) -> str:
    """Return an amount of money with its bounds.

    >>> shown_dollars(Range(low=90.0, expected=104.5, high=118.0))
    '$104.50 ($90.00 to $118.00)'
    """
    if spread.low == spread.high:
        return f"${spread.expected:,.2f}"
    return f"${spread.expected:,.2f} (${spread.low:,.2f} to ${spread.high:,.2f})"


def mesh_text(prediction: Prediction) -> str:
    """Return the degrees of a layout that are more than 1.

    >>> mesh_text(Prediction(hosts="x", count=1, distribution={}, mesh={"replicate": 2, "pipeline": 1, "shard": 4}))
    'replicate 2, shard 4'
    """
    return ", ".join(f"{name} {degree}" for name, degree in prediction.mesh.items() if degree > 1) or "one rank"


def prediction_rows(answer: Answer) -> list[tuple[str, str]]:
    """Return the lines of a plan about its prediction, each as (label, text)."""
    planned = answer.planned
    rows = [("predicted", f"{planned.count} x {planned.hosts}: {mesh_text(planned)}")]
    many = len(planned.memory) > 1
    for number, memory in enumerate(planned.memory):
        of_device = f" of {shown_memory(planned.device_bytes)}" if planned.device_bytes else ""
        label = f"memory, part {number}" if many else "memory"
        rows.append((label, f"{shown_memory(memory.peak)}{of_device}{_kinds(memory)}"))
    if planned.refusal is not None:
        rows.append(("does not run", planned.refusal))
    if planned.step is not None:
        step = planned.step
        parts = ", ".join(
            f"{name} {shown_seconds(seconds)}"
            for name, seconds in (
                ("compute", step.compute),
                ("communication", step.communication),
                ("idle", step.idle),
                ("data", step.data),
            )
            if seconds > _SHOWN_PART * step.seconds.expected
        )
        rows.append(("step", shown_range(step.seconds) + (f": {parts}" if parts else "")))
    if planned.samples_per_second is not None:
        rows.append(("samples", f"{shown_rate(planned.samples_per_second)} a second, of all ranks"))
    if planned.seconds is not None:
        rows.append(("time to end", shown_range(planned.seconds)))
    if planned.dollars is not None:
        rows.append(("cost", shown_dollars(planned.dollars)))
    rows += [("because", reason) for reason in planned.reasons]
    rows += [("note", note) for note in answer.notes]
    return rows


def layout_rows(layouts: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """Return the table of layouts, the titles first; a layout that cannot run has its reason in the last column.

    Columns that no layout fills are left out.
    """
    titles = ("", "HOSTS", "LAYOUT", "MEMORY", "STEP", "SAMPLES/S", "TIME", "COST", "")
    rows = [titles, *(_layout_row(number, layout) for number, layout in enumerate(layouts, 1))]
    kept = [at for at in range(len(titles)) if at < 4 or any(row[at] for row in rows[1:])]
    return [tuple(row[at] for at in kept) for row in rows]


def dict_text(prediction: Prediction) -> str:
    """Return the dict to paste, as Python.

    >>> dict_text(Prediction(hosts="x", count=1, distribution={"torch_distributed": {"enabled": True}}, mesh={}))
    "distribution={'torch_distributed': {'enabled': True}}"
    """
    return f"distribution={prediction.distribution!r}"


def flag_text(prediction: Prediction) -> str:
    """Return the dict as the flag of a command.

    >>> flag_text(Prediction(hosts="x", count=1, distribution={"torch_distributed": {"enabled": True}}, mesh={}))
    '--distribution \\'{"torch_distributed": {"enabled": true}}\\''
    """
    return f"--distribution {shlex.quote(json.dumps(prediction.distribution))}"


def _layout_row(number: int, layout: Prediction) -> tuple[str, ...]:
    peak = max((memory.peak for memory in layout.memory), default=0)
    reason = layout.refusal or ""
    return (
        str(number),
        f"{layout.count} x {layout.hosts}",
        settings_text(layout),
        shown_memory(peak) if peak else "",
        "" if layout.step is None else shown_seconds(layout.step.seconds.expected),
        "" if layout.samples_per_second is None else shown_rate(layout.samples_per_second),
        "" if layout.seconds is None else shown_seconds(layout.seconds.expected),
        "" if layout.dollars is None else f"${layout.dollars.expected:,.2f}",
        reason if len(reason) <= _REASON_CHARS else f"{reason[:_REASON_CHARS]}...",
    )


# Settings that two layouts of equal degrees differ in, with the words of the table.
_SETTINGS = {
    "microbatches": "microbatches {}",
    "pipeline": "{}",
    "placement_strategy": "{}",
    "optimize": "optimize {}",
    "sm_activation_offloading": "offloading",
    "activation_checkpointing": "checkpointing",
    "shard_optimizer_state": "states sharded",
}


def settings_text(layout: Prediction) -> str:
    """Return the degrees of a layout, its library, and the settings that others of these degrees may not have."""
    strategies = layout.distribution.get("smdistributed", {})
    parameters = strategies.get("modelparallel", {}).get("parameters", {})
    library = (
        "smp"
        if "partitions" in parameters or "pipeline_parallel_degree" in parameters
        else "sharded"
        if parameters
        else "smddp"
        if strategies.get("dataparallel")
        else ""
    )
    words = [mesh_text(layout), library]
    for name, text in _SETTINGS.items():
        value = parameters.get(name)
        if value not in (None, False):
            words.append(text.format(value))
    return ", ".join(filter(None, words))


def _kinds(memory: Memory) -> str:
    text = peak_text(memory).partition(" (")[2]
    return f": {text[:-1]}" if text else ""
