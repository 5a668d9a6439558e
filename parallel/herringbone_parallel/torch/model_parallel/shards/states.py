"""Optimizer states whose tensors are divided over ranks as the parameters are, and their whole form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from herringbone_parallel.torch.model_parallel import optimizer_state
from herringbone_parallel.torch.model_parallel.shards.group import ShardGroup
from herringbone_parallel.torch.model_parallel.shards.layout import Layout, Range, join_states, part_of


class DividedStates:
    """Converts between whole states and this rank's parts of them, by the parameters' names.

    states = DividedStates(group)
    states.add(layouts)
    parts = states.parts_of(whole)              # communicates nothing
    whole = states.join(parts, "optimizer.state_dict()")  # every rank of the group must call it
    """

    def __init__(self, group: ShardGroup) -> None:
        self._group = group
        self._layouts: list[Layout] = []
        # By name: the layout of a divided parameter, its number there, and this rank's elements.
        self._places: dict[str, tuple[Layout, int, Range]] = {}

    def add(self, layouts: Iterable[Layout]) -> None:
        """Divide the states of these parameters from now on."""
        for layout in layouts:
            self._layouts.append(layout)
            for number, (name, part) in enumerate(zip(layout.names, layout.ranges(self._group.index), strict=True)):
                self._places[name] = (layout, number, part)

    def has(self, name: str) -> bool:
        """Say whether the states of this parameter are divided."""
        return name in self._places

    def range_of(self, name: str) -> Range | None:
        """Return which elements of a flattened parameter this rank has; None for one that is whole."""
        place = self._places.get(name)
        return None if place is None else place[2]

    def parts_of(self, entries: Mapping[str, Any], whole: Collection[str] = ()) -> dict[str, Any]:
        """Return optimizer states by name, with this rank's elements of whole tensors; all others as they are.

        Values under the keys `whole` stay whole. A parameter of which this rank has no element has no other entries.
        """
        parts: dict[str, Any] = {}
        for name, entry in entries.items():
            place = self._places.get(name)
            if place is None:
                parts[name] = entry
                continue
            layout, number, part = place
            kept = {key: value for key, value in entry.items() if key in whole}
            if part.end > part.start:
                shape = layout.shapes[number]
                kept |= {key: part_of(value, shape, part) for key, value in entry.items() if key not in whole}
            if kept:
                parts[name] = kept
        return parts

    def join(self, entries: Mapping[str, Any], action: str) -> dict[str, Any]:
        """Return optimizer states by name, whole and on the CPU; every rank of the group must call it."""
        if not self._layouts:
            return dict(entries)
        self._group.agree(action)
        own = {name: optimizer_state.on_cpu(entry) for name, entry in entries.items() if name in self._places}
        others = {name: entry for name, entry in entries.items() if name not in self._places}
        return {**others, **join_states(self._layouts, self._group.objects(own))}
