"""The layouts with which a job goes on after it has run out of memory (`out_of_memory: replan`). Pure.

    layouts of a search -- `smaller` --> those to take one after the other, each of less memory --> Replan

A layout that ran out of memory needs more than was predicted, so the next one is the fastest that needs clearly less.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from herringbone.plan.options.typed import Options
from herringbone.plan.plan import JobPlan
from herringbone_contract.distribution import parse
from herringbone_contract.faults.policies import REPLAN, answer
from herringbone_contract.hyperparameters import encode
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.prediction.answer import Prediction

# Predictions of two layouts may be wrong by different amounts.
_CLEARLY = 0.9


class Replan(NamedTuple):
    """A layout: hyperparameters of the job that it sets, those that it removes, and its words for the log."""

    sets: dict[str, str]
    removes: list[str]
    text: str


def is_replanned(options: Options) -> bool:
    """Report whether another layout is the answer when the job runs out of memory."""
    return answer("out_of_memory", options.fault_policies) == REPLAN


def smaller(planned: Prediction, layouts: Iterable[Prediction]) -> tuple[Prediction, ...]:
    """Return the layouts to take one after the other, from those of a search.

    Each is the fastest of those with the same ranks, hosts and global batch that need clearly less memory than the one
    before. The ranks of a tensor group may each read a batch, so that degree stays.
    """
    own = Mesh(**planned.mesh)
    left = [
        layout
        for layout in layouts
        if layout.refusal is None and layout.memory and layout.samples_per_second and _is_like(planned, own, layout)
    ]
    chain, last = list[Prediction](), planned
    while left := [layout for layout in left if _peak(layout) < _CLEARLY * _peak(last)]:
        last = max(left, key=lambda layout: layout.samples_per_second or 0.0)
        chain.append(last)
    return tuple(chain)


def replans(plan: JobPlan) -> tuple[Replan, ...]:
    """Return what each of a plan's layouts changes of the job; nothing for a job that is not replanned."""
    if plan.prediction is None or not is_replanned(plan.options):
        return ()
    kind, found = plan.hosts[0].instance_type, []
    encoded = [encode(parse(layout.distribution), instance_type=kind) for layout in plan.prediction.layouts]
    # Of the job's own layout, or of one that it has taken before.
    names = {*encode(plan.distribution, instance_type=kind), *(name for sets in encoded for name in sets)}
    for layout, sets in zip(plan.prediction.layouts, encoded, strict=True):
        speed = f"{layout.samples_per_second or 0.0:.3g} samples a second"
        text = f"{json.dumps(layout.distribution)} ({_peak(layout) / 2**20:.0f} MiB a rank and {speed} predicted)"
        found.append(Replan(sets, sorted(names - sets.keys()), text))
    return tuple(found)


def replanned(plan: JobPlan, number: int) -> JobPlan:
    """Return the plan of a job that has been replanned so many times."""
    if not number or plan.prediction is None:
        return plan
    change = replans(plan)[number - 1]
    kept = {name: value for name, value in plan.hyperparameters.items() if name not in change.removes}
    distribution = parse(plan.prediction.layouts[number - 1].distribution)
    return msgspec.structs.replace(plan, distribution=distribution, hyperparameters={**kept, **change.sets})


def _is_like(planned: Prediction, own: Mesh, layout: Prediction) -> bool:
    mesh = Mesh(**layout.mesh)
    same = (mesh.ranks, mesh.batches, mesh.tensor) == (own.ranks, own.batches, own.tensor)
    return same and (layout.hosts, layout.count) == (planned.hosts, planned.count)


def _peak(layout: Prediction) -> int:
    return max((memory.peak for memory in layout.memory), default=0)
