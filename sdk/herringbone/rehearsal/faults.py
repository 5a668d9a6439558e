"""The faults of a rehearsal: how each is caused, and where it cannot be. Pure.

A fault comes after the first checkpoint and some steps more. Then the job ends, or its backend starts another attempt,
or it goes on. A job that has ended is resumed as its user would resume it, on the hosts that `Fault.resumed` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from herringbone.plan.request import JobRequest, groups_of
from herringbone_contract.errors import OptionError, near_words

UNDISTURBED = "undisturbed"
# On SageMaker nobody but AWS reaches a container, so a job can only be stopped.
_SERVICE = "sagemaker"
# The codes of `herringbone_entry.faults.Done`, which another package has.
_REASONS = {
    0: "",
    10: "its process was not found on the host, or the job was over before",
    11: "the host does not allow it: it needs Linux, and for a cut link the right to trace the job's processes",
    12: "no save came in time: let the script save more often, or run longer",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    `text` says in words how it is caused. `kind` is that of `herringbone_entry.faults`, None for a stop of the job.
    `on_last`: it comes on the last host instead of the first one.
    `resumed` returns the requests to resume with, one of which its plan may refuse; [] where there is none.
    """

    name: str
    text: str
    kind: str | None = None
    on_last: bool = False
    fewest_hosts: int = 1
    resumed: Callable[[JobRequest], Sequence[Mapping[str, Any]]] = field(default=lambda _: ({},))
    layout: Literal["same", "other"] = "same"


def _fewer(request: JobRequest) -> Sequence[Mapping[str, Any]]:
    (group,) = groups_of(request)
    return [{"instance_count": group.instance_count - 1}]


def _other(request: JobRequest) -> Sequence[Mapping[str, Any]]:
    """Return other layouts: other numbers of ranks on each host under MPI, more hosts.

    Doubles come first, which divide the global batch of most scripts.
    """
    given = request.arguments.distribution
    strategies: dict[str, Any] = {} if given is None or isinstance(given, str) else dict(given)
    (group,) = groups_of(request)
    mpi = strategies.get("mpi") or {}
    ranks = mpi.get("processes_per_host") if mpi.get("enabled") else None
    counts = [] if not ranks else [count for count in (ranks * 2, ranks // 2, ranks + 1) if count and count != ranks]
    layouts: list[Mapping[str, Any]] = [
        {"distribution": {**strategies, "mpi": {**mpi, "processes_per_host": count}}} for count in counts
    ]
    hosts = [{"instance_count": count} for count in (group.instance_count * 2, group.instance_count + 1)]
    return [*layouts, *hosts] if strategies else []


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("rank-killed", "SIGKILL to a rank of the last host", "rank", on_last=True),
        Fault("host-lost", "SIGKILL to all processes of the last host", "lost", on_last=True),
        Fault("controller-killed", "SIGKILL to the job's controller", "controller"),
        Fault("machine-frozen", "the last host stands still for a while", "frozen", on_last=True),
        Fault("link-cut", "the last host's connections end", "links", on_last=True, fewest_hosts=2),
        Fault("disk-full", "a save's write fails: a limit on the size of the ranks' files (RLIMIT_FSIZE)", "full"),
        Fault("save-torn", "SIGKILL to the first rank in the middle of a save", "torn"),
        Fault("stop-resume", "the job is stopped, and resumed"),
        Fault("fewer-hosts", "the job is stopped, and resumed on one host less", fewest_hosts=2, resumed=_fewer,
              layout="other"),
        Fault("other-layout", "the job is stopped, and resumed on another number of ranks", resumed=_other,
              layout="other"),
        Fault("preemption", "the notice that the last host goes: SIGTERM to its supervisor", "notice", on_last=True),
    )
}  # fmt: skip


def chosen(names: Sequence[str]) -> list[Fault]:
    """Return the faults of these names, all for none. Raises `OptionError` for a name that no fault has.

    >>> [fault.name for fault in chosen(["save-torn"])], len(chosen([]))
    (['save-torn'], 11)
    """
    for name in names:
        if name not in FAULTS:
            near = near_words(name.replace("_", "-"), FAULTS)
            hint = f"did you mean {near[0]}?" if near else f"there is: {', '.join(FAULTS)}"
            raise OptionError(f"faults: {name!r} is no fault of a rehearsal; {hint}")
    return [FAULTS[name] for name in dict.fromkeys(names or FAULTS)]


def impossible(fault: Fault, request: JobRequest, backend: str) -> str:
    """Return why a backend cannot cause a fault in this job, "" where it can.

    >>> from herringbone.plan.request import make_request
    >>> alone = make_request("Estimator", {"entry_point": "a.py", "instance_type": "local_process"})
    >>> [impossible(FAULTS[name], alone, "local_process") for name in ("link-cut", "rank-killed")]
    ['the job has one host', '']
    """
    groups = groups_of(request)
    if backend == _SERVICE and fault.kind is not None:
        return "only AWS reaches the containers of ml.*; rehearse on local, in the same image"
    if sum(group.instance_count for group in groups) < fault.fewest_hosts:
        return "the job has one host"
    if fault.layout == "other" and len(groups) > 1:
        return "a job of instance_groups has no other layout that could be chosen for it"
    if fault.layout == "other" and not request.arguments.distribution:
        return "the ranks train apart: the job has no distribution"
    return "" if fault.resumed(request) else "the job has no other layout"


def reason(code: int) -> str:
    """Return why the program on the host has caused nothing, "" for 0.

    >>> reason(0), reason(1)
    ('', 'the program on the host ended with code 1: its image may have an earlier release of Herringbone, or none')
    """
    unknown = f"the program on the host ended with code {code}: its image may have an earlier release of Herringbone"
    return _REASONS.get(code, f"{unknown}, or none")
