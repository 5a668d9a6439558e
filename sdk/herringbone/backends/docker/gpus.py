"""Assigns the GPUs of this machine to containers, each GPU to at most one, also across jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from herringbone.backends.docker.request import ObjectLabel
from herringbone.engine.client import EngineRefusal
from herringbone.slots.devices import VISIBLE_VARIABLE
from herringbone_contract.errors import LaunchError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.engine.client import Engine

_FRACTION_DIGITS = 9


def split_gpus(gpus: Sequence[str], hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Assign the GPUs to the hosts, the same number to each.

    >>> split_gpus(["a", "b", "c", "d"], ["algo-1", "algo-2"])
    {'algo-1': ('a', 'b'), 'algo-2': ('c', 'd')}

    A remainder stays unused, because hosts of one type must be alike. Raises `UnsupportedError` when there are fewer
    GPUs than hosts.
    """
    if not hosts:
        return {}
    share = len(gpus) // len(hosts)
    if not share:
        raise UnsupportedError(
            f"instance_type 'local_gpu': {len(hosts)} host{'s' * (len(hosts) != 1)} with at least one GPU each, and "
            f"this machine has {len(gpus)} for this job; use fewer hosts, or 'local' for containers without GPUs"
        )
    return {host: tuple(gpus[index * share : (index + 1) * share]) for index, host in enumerate(hosts)}


def check_free(engine: Engine, containers: Sequence[str]) -> None:
    """Raise `LaunchError` when a container of another job had a GPU of these new containers before them.

    The containers exist already, so of two jobs that are submitted at one moment, the later one is refused.
    """
    ours = [_holder(engine.get(f"/containers/{container}/json")) for container in containers]
    for other in _holders(engine, besides=containers):
        shared = sorted({gpu for holder in ours if other.created < holder.created for gpu in holder.gpus & other.gpus})
        if shared:
            raise LaunchError(
                f"instance_type 'local_gpu': job {other.job} has {', '.join(shared)}; wait for its end (`herringbone "
                f"logs -f {other.job}`), stop it (`herringbone stop {other.job}`), or give each job GPUs of its own by "
                f"{VISIBLE_VARIABLE}"
            )


def are_free(engine: Engine, gpus: Sequence[str]) -> bool:
    """Report whether no container has one of these GPUs.

    The containers of a job whose controller was killed outlive its claim, until they have stopped by themselves.
    """
    return not any(holder.gpus.intersection(gpus) for holder in _holders(engine))


class _Holder(NamedTuple):
    """A container with GPUs: its job, when it was created, and the ids of its GPUs."""

    job: str
    created: tuple[str, str]
    gpus: frozenset[str]


def _holders(engine: Engine, besides: Sequence[str] = ()) -> Iterator[_Holder]:
    for listed in engine.get("/containers/json", all=True, filters={"label": [ObjectLabel.GPUS]}):
        # A container that has ended uses no GPU. A new one will.
        if listed["Id"] in besides or listed["State"] in ("exited", "dead", "removing"):
            continue
        try:
            holder = _holder(engine.get(f"/containers/{listed['Id']}/json"))
        except EngineRefusal:
            # It was removed since the list was written.
            continue
        yield holder


def _holder(inspected: Mapping[str, Any]) -> _Holder:
    labels = inspected["Config"]["Labels"]
    # 2026-11-22T19:31:02.5Z: the engine leaves zeros at the end of the fraction out.
    seconds, _, fraction = inspected["Created"].rstrip("Z").partition(".")
    created = (seconds, fraction.ljust(_FRACTION_DIGITS, "0"))
    return _Holder(labels.get(ObjectLabel.JOB, "?"), created, frozenset(labels[ObjectLabel.GPUS].split(",")))
