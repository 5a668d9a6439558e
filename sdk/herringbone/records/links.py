"""Decide how a link of a model folder is packed. Pure: it works on the names of a listing, not on a disk."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from herringbone_contract.safe_tree import Entry

# The kernel follows as many links for one path.
_MAX_LINKS = 40


class Listing(NamedTuple):
    """The names in one folder, with slashes: its files, its folders, and its links with what is written in them."""

    files: Set[str]
    folders: Set[str]
    links: Mapping[str, str]


def listing_of(entries: Iterable[Entry]) -> Listing:
    """Return the listing of a folder from the entries of `safe_tree.walk`."""
    files, folders, links = set(), set(), {}
    for entry in entries:
        if entry.kind == "file":
            files.add(entry.name)
        elif entry.kind == "folder":
            folders.add(entry.name)
        elif entry.kind == "link":
            links[entry.name] = entry.target
    return Listing(files, folders, links)


def packed_target(name: str, listing: Listing, roots: Sequence[str]) -> str:
    """Return the text of a link in an archive: the relative path from the link to the file or folder behind it.

    `roots` are the absolute paths that the script may know the folder by. Raises `ValueError` with the reason why a
    link is not packed.

    >>> listing = Listing({"epochs/5.pt"}, {"epochs"}, {"best": "/opt/ml/model/epochs/5.pt", "up": ".."})
    >>> packed_target("best", listing, ["/opt/ml/model"])
    'epochs/5.pt'
    >>> packed_target("up", listing, ["/opt/ml/model"])
    Traceback (most recent call last):
    ValueError: it is a link to .., outside the folder; write the file itself into the folder
    """
    # The folder that the parts of `pending`, the last one first, are relative to.
    position = list(PurePosixPath(name).parts[:-1])
    pending = _parts(listing.links[name], position, roots)
    num_links = 1
    while pending:
        part = pending.pop()
        if part == "..":
            if not position:
                raise _outside(listing.links[name])
            position.pop()
            continue
        position.append(part)
        passed = "/".join(position)
        if passed in listing.links:
            num_links += 1
            if num_links > _MAX_LINKS:
                raise ValueError("it is a link that leads back to itself")
            position.pop()
            pending += _parts(listing.links[passed], position, roots)
        elif passed not in listing.folders and (pending or passed not in listing.files):
            raise ValueError("it is a link to nothing")
    target = "/".join(position)
    # A program that follows links would go round in such a folder without end.
    if not target or name.startswith(f"{target}/"):
        raise ValueError("it is a link to a folder above itself")
    return posixpath.relpath(f"/{target}", f"/{posixpath.dirname(name)}")


def _parts(text: str, position: list[str], roots: Sequence[str]) -> list[str]:
    """Return the parts of a link's text, the last one first; an absolute text moves `position` to the top."""
    path = PurePosixPath(text)
    if not path.is_absolute():
        return list(reversed(path.parts))
    for root in roots:
        if path.is_relative_to(root):
            position.clear()
            return list(reversed(path.relative_to(root).parts))
    raise _outside(text)


def _outside(text: str) -> ValueError:
    return ValueError(f"it is a link to {text}, outside the folder; write the file itself into the folder")
