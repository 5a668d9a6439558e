"""Find out from the stacks of all ranks which rank keeps the others waiting. Pure.

    [1] each rank's processes become one `Place`: the lines of the user's code, or of the library when there are none
    [2] ranks at the same place become one `Group`
    [3] the odd group is the one that the others wait for; it comes first

A rank is odd for the first of these reasons that holds:

    stopped or in the kernel   the kernel shows its main process as stopped, or as waiting for a disk
    ended                      it has ended, and others have not
    cut                        it is in each pair of ranks between which no data passes
    missing                    it has not entered a collective operation in which others wait, or entered another one
    not in a collective        others wait in a collective operation, and it does not
    fewest                     the fewest ranks are where it is
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

MAX_SHOWN_FRAMES = 12
_MAX_FRAME_CHARS = 300
# Files and functions in which a rank waits for the others.
_COLLECTIVE_FILES = (
    "/torch/distributed/",
    "/torch/nn/parallel/distributed.py",
    "/torch/nn/parallel/_functions.py",
    "/torch/autograd/graph.py",
    "/herringbone_parallel/",
    "/mpi4py/",
    "/horovod/",
    "/tensorflow/python/eager/",
)
# In front of the files of libraries, which are shown from their package on.
_LIBRARY = "…/"
_OURS = "/herringbone_entry/"
_LOADER_FILE = "/torch/utils/data/"
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "waiting in the kernel",
    "Z": "ended",
    "X": "ended",
    "": "ended",
}


class Place(NamedTuple):
    """The place where a rank is.

    `frames` are texts such as "train.py:12 in step", innermost first. `key` is the same for ranks at the same place.
    """

    key: tuple[str, ...]
    frames: tuple[str, ...]
    state: str
    waits: bool


class Group(NamedTuple):
    """Ranks at the same place. `odd` says why they are the ones that the others wait for, or is empty."""

    ranks: tuple[int, ...]
    place: Place
    odd: str


def place_of(processes: Sequence[Mapping[str, Any]], code: str) -> Place:
    """Return the place of a rank, given the facts of its processes and the folder of the user's code.

    >>> frame = ["/opt/ml/code/train.py", 12, "step"]
    >>> place_of([{"state": "S", "threads": [{"frames": [frame]}]}], "/opt/ml/code").frames
    ('train.py:12 in step',)
    """
    if not processes:
        return Place(("ended",), (), "ended", waits=False)
    main, *children = processes
    stack = _main_stack(main)
    own = _own_frames(stack, code)
    state = _STATES.get(main["state"], "")
    if main["state"] == "D" and main.get("wchan"):
        state += f" ({main['wchan']})"
    frames = [_text(frame, code) for frame in own or stack]
    # A rank that waits for its data loader is where the loader's worker is.
    if any(_LOADER_FILE in frame[0] for frame in _until_own(stack, code)):
        worker = next((found for child in children if (found := _own_frames(_main_stack(child), code))), [])
        frames = [f"{_text(frame, code)} (data loader's worker)" for frame in worker] + frames
    elif own and stack[0] is not own[0]:
        # The call in the library: its name tells a collective from a computation.
        frames.insert(0, _text(stack[0], code))
    key = tuple(text for text in frames if not text.startswith((_LIBRARY, "/"))) or tuple(frames)
    inner = _until_own(stack, code)
    # Whoever imports a library is at work.
    is_importing = any(frame[2] == "<module>" for frame in inner)
    waits = not is_importing and any(part in frame[0] for frame in inner for part in _COLLECTIVE_FILES)
    return Place((*key, state), tuple(frames[:MAX_SHOWN_FRAMES]), state, waits)


def cut_pairs(connections: Mapping[int, Sequence[Sequence[Any]]]) -> set[tuple[int, int]]:
    """Return the pairs of ranks between which data waits to be confirmed, the smaller rank first.

    >>> cut_pairs({0: [["a:1", "b:2", True]], 1: [["b:2", "a:1", False]]})
    {(0, 1)}
    """
    owners = {own: rank for rank, rows in connections.items() for own, _, _ in rows}
    pairs = set()
    for rank, rows in connections.items():
        for _, peer, stuck in rows:
            if stuck and owners.get(peer, rank) != rank:
                pairs.add((min(rank, owners[peer]), max(rank, owners[peer])))
    return pairs


def fold(
    places: Mapping[int, Place],
    cut: Collection[tuple[int, int]] = (),
    missing: Mapping[int, str] = MappingProxyType({}),
) -> list[Group]:
    """Return the ranks in groups, the odd one first and then the largest.

    `cut` are the pairs of ranks between which no data passes; `missing` says why ranks are not in a collective
    operation in which others wait.

    >>> waits, sleeps = Place(("a",), (), "", True), Place(("b",), (), "", False)
    >>> [(group.ranks, group.odd) for group in fold({0: waits, 1: sleeps, 2: waits})]
    [((1,), 'the others wait in a collective operation'), ((0, 2), '')]
    """
    odd = _odd_ranks(places, cut, missing)
    groups: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for rank in sorted(places):
        groups.setdefault((rank in odd, places[rank].key), []).append(rank)
    folded = [Group(tuple(ranks), places[ranks[0]], odd.get(ranks[0], "")) for ranks in groups.values()]
    return sorted(folded, key=lambda group: (not group.odd, -len(group.ranks), group.ranks))


def _odd_ranks(
    places: Mapping[int, Place], cut: Collection[tuple[int, int]], missing: Mapping[int, str]
) -> dict[int, str]:
    """Return the odd ranks, each with the reason; none if the stacks do not tell."""
    if len(places) < 2:
        return {}
    for states, reason in (
        (("stopped by",), "it does not run"),
        (("waiting in the kernel",), "it waits in the kernel"),
        (("ended",), "it has ended"),
    ):
        ranks = [rank for rank, place in places.items() if place.state.startswith(states)]
        if ranks and len(ranks) < len(places):
            return dict.fromkeys(ranks, reason)
    if cut:
        common = set.intersection(*({*pair} for pair in cut))
        if common:
            return dict.fromkeys(common, "no data passes between it and the others")
    if missing and len(missing) < len(places):
        return {rank: reason for rank, reason in missing.items() if rank in places}
    waiting = {rank for rank, place in places.items() if place.waits}
    outside = set(places) - waiting
    if outside and len(outside) <= len(waiting):
        return dict.fromkeys(outside, "the others wait in a collective operation")
    counts: dict[tuple[str, ...], list[int]] = {}
    for rank, place in places.items():
        counts.setdefault(place.key, []).append(rank)
    sizes = sorted(len(ranks) for ranks in counts.values())
    if len(sizes) > 1 and sizes[0] < sizes[1]:
        fewest = next(ranks for ranks in counts.values() if len(ranks) == sizes[0])
        return dict.fromkeys(fewest, "the others are somewhere else")
    return {}


def own_line(place: Place) -> str:
    """Return the innermost line of the user's code; the library's where there is none.

    >>> own_line(Place((), ("…/torch/nn/linear.py:7 in forward", "train.py:12 in step"), "", False))
    'train.py:12 in step'
    """
    own = [frame for frame in place.frames if not frame.startswith((_LIBRARY, "/"))]
    return (own or list(place.frames) or [place.state or "an unknown line"])[0]


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as people write them.

    >>> ranks_text([0, 1, 2, 5]), ranks_text([7])
    ('ranks 0-2, 5', 'rank 7')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(texts)}"


def _main_stack(process: Mapping[str, Any]) -> list[Sequence[Any]]:
    threads = process["threads"]
    # The rank's own program is below every script.
    return [frame for frame in threads[0]["frames"] if _OURS not in frame[0]] if threads else []


def _own_frames(stack: Sequence[Sequence[Any]], code: str) -> list[Sequence[Any]]:
    return [frame for frame in stack if _is_own(frame[0], code)]


def _until_own(stack: Sequence[Sequence[Any]], code: str) -> list[Sequence[Any]]:
    """Return the innermost frames, up to the first one of the user's."""
    inner = []
    for frame in stack:
        if _is_own(frame[0], code):
            break
        inner.append(frame)
    return inner


def _is_own(file: str, code: str) -> bool:
    return file.startswith(f"{code}/") or not file.startswith(("/", "<"))


def _text(frame: Sequence[Any], code: str) -> str:
    file, line, function = frame[:3]
    shown = file[len(code) + 1 :] if file.startswith(f"{code}/") else file if _is_own(file, code) else _short(file)
    source = f": {frame[3]}" if len(frame) > 3 and frame[3] else ""
    return f"{shown}:{line} in {function}{source}"[:_MAX_FRAME_CHARS]


def _short(file: str) -> str:
    """Shorten a library's path to its part below site-packages, or below Python's own folder."""
    for folder in ("/site-packages/", "/dist-packages/", "/lib/"):
        if folder in file:
            return f"{_LIBRARY}{file.rpartition(folder)[2]}"
    return file
