"""Say no before a job starts: compare a predicted peak with the memory of the device. Pure."""

from __future__ import annotations

from herringbone.show.predictions import peak_text
from herringbone.system.sizes import shown_memory
from herringbone_contract.errors import UnsupportedError
from herringbone_contract.prediction.answer import Memory, Prediction

# A predicted peak is right within five percent.
TOLERANCE = 0.05
OPTION = "check_memory"


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
