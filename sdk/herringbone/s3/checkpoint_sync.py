"""Decide which checkpoints of a folder are whole and not in the bucket yet. Pure.

    scan --> Unit, one for each name at the top of the folder --> plan_sync --> steps: remove, send, send last

A unit is sent when nothing can be writing it: a folder with its manifest, which appears by a rename; anything else when
it is as it was at the last scan; and everything when the job is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from herringbone.s3.names import is_unfinished, whole_checkpoints
from herringbone_contract.checkpoint.manifest import MANIFEST, NEWEST


class FileState(NamedTuple):
    """A file as a scan sees it. `modified` is in nanoseconds since 1970."""

    size: int
    modified: int


class Steps(NamedTuple):
    """Requests to send, in this order, so that a reader of the bucket never takes half a checkpoint for a whole one.

    `remove` are names of objects: manifests of checkpoints that are replaced, and files that a new one lacks.
    """

    remove: tuple[str, ...]
    send: tuple[str, ...]


Scan = Mapping[str, FileState]


def plan_sync(now: Scan, before: Scan, sent: Scan, *, over: bool) -> Steps:
    """Return the steps that bring the bucket up to date.

    >>> now = {"a.pt": FileState(3, 1)}
    >>> plan_sync(now, {}, {}, over=False).send, plan_sync(now, now, {}, over=False).send
    ((), ('a.pt',))

    `before` is the scan before `now`, `sent` the files that the bucket has. A checkpoint that the script removed stays
    in the bucket.
    """
    names = [name for name in whole_checkpoints(list(now)) if not is_unfinished(name)]
    units: dict[str, list[str]] = {}
    for name in names:
        units.setdefault(name.partition("/")[0], []).append(name)
    remove: list[str] = []
    send: list[str] = []
    for unit, files in units.items():
        changed = [name for name in files if sent.get(name) != now[name]]
        if not changed or not (over or _is_still(unit, files, now, before)):
            continue
        manifest = f"{unit}/{MANIFEST}"
        if manifest in files:
            if manifest in sent:
                # First of all: without its manifest, nobody takes the checkpoint in the bucket for a whole one.
                gone = [name for name in sent if name.startswith(f"{unit}/") and name not in now and name != manifest]
                remove += [manifest, *gone]
            changed = [name for name in changed if name != manifest] + [manifest]
        send += changed
    # The name of the newest checkpoint comes last: what it names is in the bucket then.
    return Steps(tuple(remove), tuple(sorted(send, key=lambda name: name == NEWEST)))


def _is_still(unit: str, files: list[str], now: Scan, before: Scan) -> bool:
    if f"{unit}/{MANIFEST}" in files:
        return True
    earlier = {name: state for name, state in before.items() if name.partition("/")[0] == unit}
    return earlier == {name: state for name, state in now.items() if name.partition("/")[0] == unit}
