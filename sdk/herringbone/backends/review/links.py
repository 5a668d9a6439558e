"""Links that lead out of a channel: a container sees the channel, and not what lies elsewhere on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from herringbone.plan.channels import is_piped
from herringbone.plan.plan import JobPlan

# Backends whose hosts are containers with the channels mounted. Machines of `ssh:` get copies, without links.
_MOUNTED = ("local",)
# A look at so many entries takes a tenth of a second.
_MOST_ENTRIES = 50_000
_SHOWN = 3


def link_warnings(plan: JobPlan) -> tuple[str, ...]:
    """Return a warning for each channel with links whose targets a container of the job does not have."""
    if plan.backend not in _MOUNTED:
        return ()
    warnings = []
    for channel in plan.channels:
        if channel.path is None or is_piped(channel, plan) or not Path(channel.path).is_dir():
            continue
        if links := list(leaving_links(channel.path)):
            more = f" and {len(links) - _SHOWN} more" if len(links) > _SHOWN else ""
            warnings.append(
                f"channel {channel.name!r}: the links {', '.join(links[:_SHOWN])}{more} lead out of {channel.path}, "
                "and a container sees nothing else of this machine: give a folder with the files themselves (`cp -rL`)"
            )
    return tuple(warnings)


def leaving_links(folder: str, most: int = _MOST_ENTRIES) -> Iterator[str]:
    """Yield the links among the first `most` entries of a folder that lead to something outside of it.

    >>> list(leaving_links("/home/ann/.cache/hub/snapshots/main"))               # doctest: +SKIP
    ['model.safetensors']
    """
    for entry in islice(_entries(folder), most):
        if entry.is_symlink() and os.path.exists(entry.path):  # noqa: PTH110 - `walk` has no paths either
            target = os.readlink(entry.path)  # noqa: PTH115
            name = os.path.relpath(entry.path, folder)
            # An absolute one names a path of this machine, also where that is inside of the channel.
            if target.startswith("/") or os.path.normpath(os.path.join(os.path.dirname(name), target)).startswith(".."):  # noqa: PTH118, PTH120
                yield name


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    folders = [folder]
    while folders:
        try:
            entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
