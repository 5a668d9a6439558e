"""State that the code of a step keeps besides its arguments: each microbatch sees what one process would show it.

One process runs the microbatches one after another. Here they take turns, so each has a version of its own:

    [1] a microbatch gives the run token away      what it has changed becomes its version      `save_state`
    [2] another one gets the token                 its version is put in place, or else that    `_enter`
                                                   of the nearest microbatch before it
    [3] all have ended                             the version of the last one stays            `end_step`

A version is right if the microbatches before have made theirs by then. So they take turns as the state needs it
(`Turns`). The first step runs them one after another, and shows what the code keeps, and when.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Iterable
from itertools import chain, compress, repeat
from operator import attrgetter, is_, not_
from typing import Any

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.runtime.kept import attributes, contents, reachable
from herringbone_parallel.torch.model_parallel.runtime.kept.outward import Outward
from herringbone_parallel.torch.model_parallel.runtime.kept.reachable import Entry, Location, Reach
from herringbone_parallel.torch.model_parallel.runtime.kept.turns import Turns
from herringbone_parallel.torch.model_parallel.runtime.microbatch import HOME_ATTRIBUTE, PATH_ATTRIBUTE, Microbatch
from herringbone_parallel.torch.model_parallel.runtime.placed import PlacedTensor
from herringbone_parallel.torch.model_parallel.runtime.randomness import save_generators

_CONTENTS, _VERSION = attrgetter("cell_contents"), attrgetter("_version")


class Kept:
    """The state that one step function and the model keep, in a version for each microbatch.

        kept = Kept(function, model, forwards_first=pipeline == "simple")
        kept.begin_step()
        kept.begin(index, microbatch)      # in the thread of each microbatch, which holds the run token
        restore = kept.save_state()        # it gives the token away, and calls `restore` when it has the token again
        kept.end_forward()
        kept.end(index)
        kept.end_step(share(kept.conclude()))

    Only the holder of the run token, and the thread that calls the step before and after it, use it.
    """

    def __init__(self, function: Callable[..., Any], model: nn.Module | None, *, forwards_first: bool) -> None:
        self._function, self._model, self._forwards_first = function, model, forwards_first
        self.turns = Turns.WHOLE
        self._step = 0
        # The offset in the step function's code at which the first backward begins; None until one has begun.
        self._backward_at: int | None = None
        self._reads: set[str] | None = None
        self._walked = -1
        self._watched: list[Location] = []
        self._found: list[Location] = []
        self._outward: Outward | None = None
        # Attributes that code has set, by namespace and name; parameters that it has written into; all ever changed.
        self._attributes: dict[Hashable, Entry] = {}
        self.parameters: dict[int, Entry] = {}
        self._ever: dict[Location, None] = {}
        self._warned: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        # The microbatch that holds the run token, and those that have begun and not ended.
        self._holder: int | None = None
        self._settled = False
        self._live: set[int] = set()
        self._in_backward: set[int] = set()
        # By location: the versions by microbatch; -1 is what was there before the step.
        self._versions: dict[Location, dict[int, Any]] = {}
        self._touched: dict[Location, None] = {}
        # Locations that a microbatch has changed after its forward, or after a later microbatch had begun.
        self._by_backward: dict[Location, None] = {}
        self._late: dict[Location, None] = {}

    @classmethod
    def of(cls, library: Any, function: Callable[..., Any]) -> Kept:
        """Return a new one for the library's model."""
        model = None if library.model is None else library.model.module
        return cls(function, model, forwards_first=library.settings.pipeline == "simple")

    @classmethod
    def begun(cls, library: Any, function: Callable[..., Any]) -> Kept:
        """Return that of the library's model and the function, in a new step."""
        if (function, library.model) not in library.kept:
            library.kept[function, library.model] = cls.of(library, function)
        kept: Kept = library.kept[function, library.model]
        kept.begin_step()
        return kept

    @property
    def first_step(self) -> bool:
        """Say whether this is the step that decides, on all ranks alike, on the turns of the next ones."""
        return self._step == 1

    def begin_step(self) -> None:
        """Look at the state, which the script may have changed since the last step."""
        self.stop()
        self._reset()
        self._step += 1
        if self._walked != attributes.objects_set:
            self._walk()
        if changed := self._changed():
            for location in changed:
                location.seen = location.read()
                self._find(location)
            self._refresh()
        # A microbatch's thread begins without them.
        self._versions = {each: {-1: each.seen} for each in (*self._watched, *self._found) if each.of_thread}

    def begin(self, index: int, microbatch: Microbatch) -> None:
        """Let the holder of the run token begin its microbatch."""
        self._live.add(index)
        microbatch.outward, microbatch.kept = self._outward, self
        self._enter(index)
        if self.turns is not Turns.FREE:
            # On every rank at the same call, with the same state: the microbatches before have ended their forwards.
            self._adopt(index, microbatch)

    def save_state(self) -> Callable[[], None]:
        """Give the token away; return the function that puts back the holder's state, and its random numbers."""
        index, restore = self._holder, save_generators()
        self.leave()

        def put_back() -> None:
            if index is not None:
                self._enter(index)
            restore()

        return put_back

    def leave(self) -> None:
        """Note what the holder has changed."""
        if self._holder is not None and not self._settled:
            self._settle(self._holder)
        self._holder = attributes.active = None

    def end_forward(self) -> None:
        """Note that the holder's backward begins."""
        index = self._holder
        assert index is not None
        if index in self._in_backward:
            return
        self._settle(index)
        # The token is given away at once.
        self._settled = True
        self._in_backward.add(index)
        if self._backward_at is None:
            frame: Any = sys._getframe()
            while frame is not None and frame.f_code is not self._function.__code__:
                frame = frame.f_back
            self._backward_at = 0 if frame is None else frame.f_lasti

    def end(self, index: int) -> None:
        """Note that the holder's microbatch has ended, and forget versions that no other one needs."""
        self.leave()
        self._live.discard(index)
        lowest = min(self._live, default=index)
        for versions in self._versions.values():
            needed = max(number for number in versions if number <= lowest)
            for number in [number for number in versions if number < needed]:
                del versions[number]

    def conclude(self) -> list[PlacedTensor]:
        """Put the last microbatch's state in place, and decide on the turns of the next step.

        Returns the placed tensors in the state, in an order that all ranks share.
        """
        self._enter(sys.maxsize)
        self._holder = None
        # A table that the first microbatch of all has made once is not kept from one microbatch to another.
        once = {-1} if self._step > 1 else {-1, 0}
        self._take_turns([each for each, made in self._versions.items() if set(made) - once])
        return self._foreign(None)

    def end_step(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        """End the step with data in place of the tensors that `conclude` has returned."""
        self._replace(dict(zip(map(id, self._foreign(None)), tensors, strict=False)))
        self.stop()
        if self._versions:
            self._ever |= {location: None for location in self._versions if location not in self._found}
            self._found = []
            for location in self._ever:
                self._find(location)
            self._refresh()

    def undo(self) -> None:
        """Put back what was there before the step."""
        self.leave()
        self._enter(-1)
        self.stop()

    def stop(self) -> None:
        """Look at nothing until the next step."""
        attributes.active = None

    def note(self, module: nn.Module, name: str, namespace: dict[str, Any] | None = None) -> None:
        """Note that code of a step is about to set an attribute of a module."""
        if namespace is None:
            own = vars(module)
            groups = (own["_buffers"], own["_parameters"], own["_modules"])
            namespace = next((group for group in groups if name in group), own)
        entry = self._attributes.get((id(namespace), name))
        if entry is None:
            entry = self._attributes[id(namespace), name] = Entry(name, namespace, name)
            frame = sys._getframe(2)
            entry.line = f" ({frame.f_code.co_filename}:{frame.f_lineno})"
        if entry not in self._versions:
            entry.seen = entry.read()
            self._versions[entry] = {-1: entry.seen}
        self._touched[entry] = None
        if self._outward is not None:
            self._outward.set_here[entry] = None

    def note_write(self, parameter: Any) -> None:
        """Note that code of every rank writes into a parameter, whose data no version puts back."""
        # One for all parameters: each hand-over of the run token looks at every location that has versions.
        new = Entry(vars(parameter)[PATH_ATTRIBUTE], vars(parameter), PATH_ATTRIBUTE)
        entry = self.parameters[id(parameter)] = next(iter(self.parameters.values()), new)
        self._versions.setdefault(entry, {-1: entry.seen})
        self._note_version(entry, self._holder)

    def note_use(self, parameter: Any, *, differentiated: bool) -> None:
        """Note a use of a parameter, which a backward may repeat if the use is `differentiated`."""
        if id(parameter) in self.parameters and (differentiated or self._holder in self._in_backward):
            self._by_backward[self.parameters[id(parameter)]] = None

    def _walk(self) -> None:
        self._walked = attributes.objects_set
        reach = Reach()
        reach.visit(self._model, "")
        reach.visit(self._function, "")
        self._watched, self._found = reach.locations, []
        modules = [] if self._model is None else list(self._model.modules())
        split = [inner for inner in modules if HOME_ATTRIBUTE not in vars(inner)]
        # In a pipeline of one rank all code runs on it.
        if len(split) < len(modules):
            self._outward = Outward(self._model, split, self._function, reach.locations)
        self._refresh()

    def _refresh(self) -> None:
        watched = (*self._watched, *self._found)
        slow = [each.slow or each.large or each.seen is reachable.MISSING for each in watched]
        self._slow, self._fast = list(compress(watched, slow)), list(compress(watched, map(not_, slow)))
        entries = [each for each in self._fast if type(each) is Entry]
        self._entries = [each.target for each in entries], [each.key for each in entries]
        self._cells = [each.target for each in self._fast if type(each) is reachable.Variable]
        self._tensors = [each.target for each in self._fast if type(each) is reachable.Version]
        containers = [each.target for each in self._fast if type(each) in (Location, reachable.ClassAttributes)]
        targets = [vars(target) if isinstance(target, type) else target for target in containers]
        self._views = [*targets, *(target.values() for target in targets if hasattr(target, "values"))]
        self._members, self._sizes = self._compared()

    def _compared(self) -> tuple[list[Any], list[int]]:
        """Return what differs after any change: objects, by identity, and numbers."""
        variables = map(_CONTENTS, self._cells)
        entries = map(dict.get, *self._entries, repeat(reachable.MISSING))
        members = [*chain.from_iterable(self._views), *variables, *entries]
        return members, [*map(len, self._views), *map(_VERSION, self._tensors)]

    def _changed(self) -> list[Location]:
        """Return the watched locations that have changed. Usually none has, and no code of Python runs for each."""
        changed = [location for location in self._slow if location.changed()]
        try:
            members, sizes = self._compared()
        except ValueError:
            # A variable has been deleted.
            members, sizes = [], []
        if sizes != self._sizes or len(members) != len(self._members) or not all(map(is_, members, self._members)):
            changed += [location for location in self._fast if location.changed()]
        return changed

    def _settle(self, index: int) -> None:
        changed = dict.fromkeys(chain(self._touched, self._changed()))
        if not changed:
            return
        self._touched = {}
        for location in changed:
            self._versions.setdefault(location, {-1: location.seen})
            if index in self._in_backward:
                location.write(contents.with_placed(location.read(), location.seen))
            location.seen = location.read()
            self._note_version(location, index)
            self._find(location)
        self._refresh()

    def _note_version(self, location: Location, index: Any) -> None:
        self._versions[location][index] = location.seen
        if index in self._in_backward:
            self._by_backward[location] = None
        if any(other > index for other in self._live):
            self._late[location] = None

    def _find(self, location: Location) -> None:
        """Watch the containers that have come into a location."""
        reach = Reach()
        known = {id(other.target) for other in chain(self._watched, self._found)}
        for member in contents.members(location.seen):
            reach.visit(member, location.name)
        self._found += [other for other in reach.locations if id(other.target) not in known]

    def _enter(self, index: int) -> None:
        put = False
        for location, versions in self._versions.items():
            content = versions[max(number for number in versions if number <= index)]
            if content is not location.seen or location.of_thread:
                location.write(content)
                put = True
        if put:
            self._refresh()
        self._holder, attributes.active, self._settled = index, self, False

    def _foreign(self, microbatch: Microbatch | None) -> list[PlacedTensor]:
        """Return the placed tensors of other microbatches in the state that is in place."""
        leaves = chain.from_iterable(contents.placed_in(location.seen) for location in self._versions)
        placed = {id(leaf): leaf for leaf in leaves if leaf.maker is not microbatch}
        return sorted(placed.values(), key=lambda leaf: (leaf.maker.index, leaf.value.serial))

    def _adopt(self, index: int, microbatch: Microbatch) -> None:
        foreign = self._foreign(microbatch)
        for location in self._replace({id(leaf): microbatch.adopt(leaf) for leaf in foreign}):
            self._versions[location][index] = location.seen

    def _replace(self, new: dict[int, Any]) -> list[Location]:
        """Put `new` tensors in the places of those that have these identities; return the changed locations."""
        changed = [each for each in self._versions if any(id(leaf) in new for leaf in contents.placed_in(each.seen))]
        for location in changed:
            location.write(contents.with_tensors(location.seen, new))
        return changed

    def _take_turns(self, kept: list[Location]) -> None:
        """Decide on the turns of the next step, and warn if this one may have needed them."""
        read = [location for location in kept if location in self._by_backward and self._is_read(location)]
        late = [location for location in kept if location in self._late and self._is_read(location)]
        turns = Turns.WHOLE if read else Turns.PHASES if kept else Turns.FREE
        if self.turns < turns and late:
            warnings.warn(
                f"{_named(late)} was kept by a microbatch while a later one had begun, for the first time in this step:"
                " the later one may have read the old value. From the next step on the microbatches take turns",
                stacklevel=2,
            )
        elif read and not self._warned.issuperset(location.name for location in read):
            self._warned.update(location.name for location in read)
            warnings.warn(
                f"{_named(read)} is changed in or after a backward and read by a forward, or the other way round: the"
                " next microbatch begins when the one before has ended, and the ranks of the pipeline wait for each"
                " other. To overlap them, change it at the beginning of the step function, and read it in forwards",
                stacklevel=2,
            )
        if self.first_step:
            self.turns = turns
        elif turns > self.turns:
            if turns is Turns.WHOLE and self._forwards_first:
                raise ParallelError(
                    f"{_named(read)} is changed in or after a backward, for the first time in this step, and read by a"
                    " forward. Under pipeline 'simple' all forwards come before the first backward: set `pipeline` to"
                    " interleaved, or change it in the first step, too"
                )
            # Turns are not given up again.
            self.turns = turns

    def _is_read(self, location: Location) -> bool:
        """Say whether code that may belong to a forward reads this name, or a parameter, which it need not name."""
        if self._reads is None:
            self._reads = reachable.read_by(self._function, self._backward_at, self._model)
        return location.key == PATH_ATTRIBUTE or location.name in self._reads


def _named(locations: list[Location]) -> str:
    return ", ".join(dict.fromkeys(f"{location.name!r}{location.line}" for location in locations))
