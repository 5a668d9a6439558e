"""Say no before a job starts: a predicted peak is above the device's memory, or a time beyond the job's limit. Pure."""

from __future__ import annotations

from herringbone.show.predictions import peak_text, shown_range
from herringbone.system.sizes import shown_memory
from herringbone.system.times import shown_span
from herringbone_contract.errors import UnsupportedError
from herringbone_contract.prediction.answer import Memory, Prediction

# A predicted peak is right within five percent.
TOLERANCE = 0.05
OPTION, TIME_OPTION = "check_memory", "check_time"


def largest(prediction: Prediction) -> Memory:
    """Return the memory of the partition with the highest peak."""
    return max(prediction.memory, key=lambda memory: memory.peak, default=Memory())


def excess(prediction: Prediction) -> float:
    """Return the part of the device's memory that the peak is above it; negative where there is room.

    >>> prediction = Prediction(hosts="x", count=1, distribution={}, mesh={}, memory=(Memory(states=110),),
    ...                         device_bytes=100)
    >>> round(excess(prediction), 2)
    0.1
    """
    if not prediction.device_bytes or not prediction.memory:
        return -1.0
    return largest(prediction).peak / prediction.device_bytes - 1


def memory_warning(prediction: Prediction) -> str | None:
    """Return the warning about a peak that is within five percent of the device's memory; None where there is room."""
    above = excess(prediction)
    if above <= -TOLERANCE:
        return None
    how = "more than" if above > 0 else "close to"
    return (
        f"predicted peak memory of a rank is {peak_text(largest(prediction))}, {how} the"
        f" {shown_memory(prediction.device_bytes)} of its device"
    )


def check_memory(prediction: Prediction, *, enabled: bool = True) -> None:
    """Raise `UnsupportedError` for a layout that cannot run, or whose peak is more than five percent above the device.

    `enabled` False checks nothing: the user knows better.
    """
    if not enabled:
        return
    above = excess(prediction)
    if above <= TOLERANCE and prediction.refusal is None:
        return
    override = f"set {OPTION}=False (-o {OPTION}=false) to start the job all the same"
    find = "`herringbone plan ... --measure --choose` lists layouts that fit"
    if above > TOLERANCE:
        raise UnsupportedError(
            f"memory: a rank needs {peak_text(largest(prediction))} at its peak, and its device has"
            f" {shown_memory(prediction.device_bytes)}: {above:.0%} too little. {find}; a smaller batch needs less;"
            f" {override}"
        )
    raise UnsupportedError(f"distribution: {prediction.refusal}. {find}; {override}")


def time_warning(prediction: Prediction, limit: int) -> str | None:
    """Return the warning about a job that may be stopped before its end, `limit` seconds after its start."""
    seconds = prediction.seconds
    if seconds is None or seconds.high <= limit:
        return None
    how = "is" if seconds.expected > limit else "may be"
    return f"it takes {shown_range(seconds)} by its prediction, and {how} stopped after {shown_span(limit)}"


def check_time(prediction: Prediction, limit: int, *, option: str, enabled: bool = True) -> None:
    """Raise `UnsupportedError` for a job that is stopped before its end, even if it is as fast as it may be.

    `option` is the one that sets the `limit`, in seconds; `enabled` False checks nothing.
    """
    if not enabled or prediction.seconds is None or prediction.seconds.low <= limit:
        return
    raise UnsupportedError(
        f"{option}: the job takes {shown_range(prediction.seconds)} by its prediction, and is stopped after "
        f"{shown_span(limit)}. Give a larger {option}; `herringbone plan ... --measure --choose` lists faster layouts; "
        f"set {TIME_OPTION}=False (-o {TIME_OPTION}=false) to start it all the same, and go on with --resume"
    )
