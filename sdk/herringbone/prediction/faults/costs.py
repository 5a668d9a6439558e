"""The seconds that faults and saves cost a job: the user's, those of its prediction, or our measured ones. Pure."""

from __future__ import annotations

from typing import NamedTuple

from herringbone.plan.plan import JobPlan
from herringbone.prediction.faults.model import Tier
from herringbone.prediction.faults.options import FaultWords
from herringbone_contract.errors import OptionError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.prediction.answer import Prediction

# From a fault that is told to the end of the next first step, of a script that imports torch and has a tiny model: rows
# "a rank is killed" of docs/understand/restarts.md. SageMaker's is its usual time until a container runs.
_RESTART_SECONDS = {"local_process": 2.1, "ssh": 2.6, "slurm": 9.6, "sagemaker": 210.0}
_MISSED_HEARTBEATS = 3
# A process that ends on the same machine (the same page).
_NOTICED_SECONDS = 0.3
# Bytes a second of a host: benchmarks/checkpoint, 454 MB. Other disks differ, so the words name the figure.
_WRITTEN, _READ, _COPIED = 1.3e9, 1.6e9, 13e9


class Costs(NamedTuple):
    """The costs of one job, and where they come from, as lines to show.

    Each of the `ways` to save is some tiers, the fastest first. `down` are the seconds from a fault to the load.
    """

    ways: tuple[tuple[Tier, ...], ...]
    down: float
    step: float | None
    notes: tuple[str, ...]


def costs_of(plan: JobPlan, words: FaultWords, heartbeat: float) -> Costs:
    """Return the costs of a plan's job, whose supervisors send a heartbeat every so many seconds.

    Raises `OptionError` for a cost that nobody knows, with the word that gives it.
    """
    prediction = None if plan.prediction is None else plan.prediction.planned
    step = words.step
    if step is None and prediction is not None and prediction.step is not None:
        step = prediction.step.seconds.expected
    detect, restart = words.detect, words.restart
    notes = []
    if detect is None:
        alone = plan.backend in ("local_process", "local")
        detect = _NOTICED_SECONDS if alone else _MISSED_HEARTBEATS * heartbeat
        reason = "a process of this machine ends" if alone else f"{_MISSED_HEARTBEATS} heartbeats are missed"
        notes.append(f"detect={detect:g}s: {reason}; a hang takes hang_timeout")
    if restart is None:
        restart = _RESTART_SECONDS.get(plan.backend)
        if restart is None:
            raise _unknown("restart", f"how long a restart on {plan.backend} takes", "restart=60s")
        notes.append(f"restart={restart:g}s: measured with a tiny script; yours may import and build for longer")
    ways, known = _ways(prediction, words)
    return Costs(ways, detect + restart, step, (*notes, *known))


def host_bytes(prediction: Prediction) -> float:
    """Return the most bytes of a checkpoint that one host writes: parameters and states, replicas once.

    >>> from herringbone_contract.prediction.answer import Memory
    >>> memory = (Memory(parameters=100, states=200),)
    >>> host_bytes(Prediction(hosts="x", count=2, distribution={}, mesh={"shard": 16}, memory=memory))
    2400.0
    """
    mesh = Mesh(**prediction.mesh)
    # The ranks of each pipeline partition that hold different parts.
    parts = mesh.shard * mesh.context * mesh.tensor
    whole = parts * sum(memory.parameters + memory.states for memory in prediction.memory)
    ranks_per_host = mesh.ranks / prediction.count
    return whole / max(1.0, parts * mesh.pipeline / ranks_per_host)


def _ways(prediction: Prediction | None, words: FaultWords) -> tuple[tuple[tuple[Tier, ...], ...], list[str]]:
    size = host_bytes(prediction) if prediction is not None and prediction.memory else None
    save, blocked, load = words.save, words.blocked, words.load
    notes = []
    if save is not None:
        # Who has another disk for saves loads from it, too.
        load = save if load is None else load
    elif size is not None:
        save = max(size / _WRITTEN, blocked or 0.0)
        load = size / _READ if load is None else load
        disk = f"to a disk of {_WRITTEN / 1e9:g} GB/s, and back at {_READ / 1e9:g}"
        notes.append(f"save={save:.3g}s, load={load:.3g}s: {size / 1e6:.0f} MB of a host {disk}")
    else:
        raise _unknown("save", "how long a save takes", "save=20s", " or measure the script: --measure")
    waits = Tier(name="disk, training waits", blocked=save, save=save, load=load)
    if blocked is None and size is None:
        return ((waits,),), notes
    if blocked is None:
        assert size is not None
        blocked = min(save, size / _COPIED)
        notes.append(f"blocked={blocked:.3g}s in the background: a copy in memory at {_COPIED / 1e9:g} GB/s")
    return ((waits,), (Tier(name="disk, in the background", blocked=blocked, save=save, load=load),)), notes


def _unknown(word: str, what: str, example: str, also: str = "") -> OptionError:
    return OptionError(f"--faults: {what} is not known; add {word}, as --faults mtbf=30d,{example},{also}".rstrip(","))
