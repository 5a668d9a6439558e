"""Decide which checkpoints of a folder are whole and not in the bucket yet. Pure.

    scan --> Unit, one for each name at the top of the folder --> plan_sync --> steps: remove, send, send last

A unit is sent when nothing can be writing it: a folder with its manifest, which appears by a rename; anything else when
it is as it was at the last scan; and everything when the job is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def plan_removals(now: Scan, sent: Scan, removed: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names of objects that go: of checkpoints that the job has removed, once a later one is in the bucket.

    >>> state = FileState(3, 1)
    >>> plan_removals({"b.pt": state}, {"a.pt": state}, {"a.pt": ["b.pt"]})
    ()
    >>> plan_removals({"b.pt": state}, {"a.pt": state, "b.pt": state}, {"a.pt": ["b.pt"]})
    ('a.pt',)

    `removed` maps an entry of the folder to those of the checkpoint for which it went, which may itself be gone by now.
    A manifest goes first, so that nobody takes the rest for a whole checkpoint.
    """
    files: dict[str, list[str]] = {}
    for name in now:
        files.setdefault(name.partition("/")[0], []).append(name)

    def is_sent(entries: Sequence[str]) -> bool:
        passed: set[str] = set()
        while entries and not all(entry in files for entry in entries) and entries[0] not in passed:
            passed.add(entries[0])
            entries = removed.get(entries[0], ())
        return bool(entries) and all(
            entry in files and all(sent.get(name) == now[name] for name in files[entry]) for entry in entries
        )

    gone = [entry for entry, after in removed.items() if entry not in files and is_sent(after)]
    names = [name for name in sent if name.partition("/")[0] in gone]
    return tuple(sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")))


def _is_still(unit: str, files: list[str], now: Scan, before: Scan) -> bool:
    if f"{unit}/{MANIFEST}" in files:
        return True
    earlier = {name: state for name, state in before.items() if name.partition("/")[0] == unit}
    return earlier == {name: state for name, state in now.items() if name.partition("/")[0] == unit}
