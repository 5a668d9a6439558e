"""One view of all ranks of a run, which does not depend on how a layout spreads tensors and samples. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from herringbone_contract.rehearsal.records import COPY, LOCAL, SHARD, Process, Run, Step, Tensor


def merged(run: Run, notes: list[str]) -> list[Process]:
    """Return the processes of all ranks as if they were one; what no other layout has is left out, and noted.

    >>> whole = Tensor("a1", 4.0, 2.0, 4)
    >>> halves = [Step(1, tensors={"w": msgspec.structs.replace(whole, place=SHARD)}) for _ in range(2)]
    >>> [process] = merged(Run({rank: [Process([half])] for rank, half in enumerate(halves)}), [])
    >>> process.steps[0].tensors["w"].squares
    8.0
    """
    found = []
    for generation in _generations(run):
        steps = [{step.number: step for step in process.steps} for _, process in sorted(generation.items())]
        # A killed rank lacks the last step of the others.
        shared = set.intersection(*map(set, steps))
        found.append(Process([_step([rank[one] for rank in steps], notes) for one in sorted(shared)]))
    return found


def _generations(run: Run) -> list[dict[int, Process]]:
    """Return the processes that trained together, by their ranks."""
    every = [(process.began, rank, process) for rank, processes in run.processes.items() for process in processes]
    found: list[dict[int, Process]] = []
    size = 0
    for _, rank, process in sorted(every, key=lambda one: one[:2]):
        if not process.steps:
            continue
        if not found or rank in found[-1] or process.steps[0].ranks != size:
            found.append({})
            size = process.steps[0].ranks
        found[-1][rank] = process
    return found


def _step(ranks: Sequence[Step], notes: list[str]) -> Step:
    names = dict.fromkeys(name for rank in ranks for name in rank.tensors)
    return Step(
        ranks[0].number,
        ranks[0].optimizer,
        tensors={name: one for name in names for one in _tensor(name, ranks, notes)},
        # The digests of shards say nothing about another layout.
        state=dict.fromkeys((kind for rank in ranks for kind in rank.state), ""),
        settings=ranks[0].settings,
        draws=any(rank.draws for rank in ranks),
        samples=sorted(sample for rank in ranks for sample in rank.samples),
    )


def _tensor(name: str, ranks: Sequence[Step], notes: list[str]) -> Iterator[Tensor]:
    parts = [rank.tensors[name] for rank in ranks if name in rank.tensors]
    places = {part.place for part in parts}
    if places <= {SHARD, COPY}:
        parts = [part for part in parts if part.place == SHARD]
        squares, totals = [part.squares for part in parts], [part.total for part in parts]
        if None in squares or None in totals:
            yield Tensor("", None, None, parts[0].size)
        else:
            yield Tensor("", sum(filter(None, squares)), sum(filter(None, totals)), parts[0].size)
    elif LOCAL in places or len({part.digest for part in parts}) > 1:
        note = f"{name} differs between ranks, so it was not compared"
        if note not in notes:
            notes.append(note)
    else:
        yield msgspec.structs.replace(parts[0], place="")
