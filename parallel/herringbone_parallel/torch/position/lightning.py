"""Let Lightning's Trainer go on in the middle of an epoch by its own checkpoints; the script stays as it is.

    _FitLoop._load_combined_loader_states    [1] follows the loaders, and lets them go on, before their iterators
    _CheckpointConnector.dump_checkpoint     [2] adds the place and the random numbers of each rank
    _CheckpointConnector.restore_loops       [3] takes them from the checkpoint

Lightning counts batches, and begins the loader again: without a place, it reads the epoch's first samples a second time
and never its last ones. Every batch that it takes counts as used. Read in Lightning 2.5 and 2.6.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import torch

from herringbone_contract.checkpoint.roll_back import passed_over
from herringbone_contract.errors import ParallelError
from herringbone_contract.library_hooks import require
from herringbone_parallel.job_folders import CHECKPOINT_VARIABLE
from herringbone_parallel.torch.checkpoint.peers import Peers
from herringbone_parallel.torch.hugging_face_hooks import POSITION_LIGHTNING
from herringbone_parallel.torch.position import lightning_stops, random_state
from herringbone_parallel.torch.position.checks import check, refuse
from herringbone_parallel.torch.position.loader import follow
from herringbone_parallel.torch.position.orders import Samples
from herringbone_parallel.torch.position.prepared import Numbers
from herringbone_parallel.torch.position.random_state import RandomState
from herringbone_parallel.torch.position.rank_places import NONE_SAVED, RankPlace, kept, notice, notice_unpassed
from herringbone_parallel.torch.position.tracker import Place, Tracker

_KEY = "herringbone"
_WARNING = "You're resuming from a checkpoint that ended before the epoch ended"


def watch(module: ModuleType) -> None:
    """Change Lightning, after the import of its `trainer.trainer`."""
    package = module.__name__.removesuffix(".trainer.trainer")
    # It comes under two names.
    require(hook._replace(place=hook.place.replace("lightning.pytorch", package)) for hook in POSITION_LIGHTNING)
    loop: Any = __import__(f"{package}.loops.fit_loop", fromlist=["_FitLoop"])._FitLoop
    connectors = __import__(f"{package}.trainer.connectors.checkpoint_connector", fromlist=["_CheckpointConnector"])
    connector: Any = connectors._CheckpointConnector
    load, dump, restore = loop._load_combined_loader_states, connector.dump_checkpoint, connector.restore_loops

    # [1]
    def _load_combined_loader_states(self: Any) -> None:
        _follow(self)
        load(self)

    # [2]
    def dump_checkpoint(self: Any, *args: Any, **options: Any) -> Any:
        checkpoint = dump(self, *args, **options)
        loop = self.trainer.fit_loop
        if "optimizer_states" in checkpoint and (trackers := _trackers(loop)):
            owns = Peers.default().gather(_own(loop, trackers))
            if all(own is not None for own in owns):
                checkpoint[_KEY] = owns
        return checkpoint

    # [3]
    def restore_loops(self: Any) -> None:
        restore(self)
        if self._loaded_checkpoint:
            self.trainer.fit_loop._herringbone_saved = self._loaded_checkpoint.get(_KEY, ())

    loop._load_combined_loader_states = _load_combined_loader_states
    connector.dump_checkpoint, connector.restore_loops = dump_checkpoint, restore_loops
    lightning_stops.watch(package)


class LightningTracker(Tracker):
    """The place of a loader in Lightning's Trainer."""

    _numbers: Numbers | None = None
    _entry: RandomState | None = None

    def of_checkpoint(self, *, is_over: bool) -> Place:
        """Return the place behind the batches that Lightning has taken; `is_over` at the end of its epoch."""
        iteration = getattr(self._sampler, "epoch", 0) + is_over
        return msgspec.structs.replace(self.behind(is_over=is_over), iteration=iteration)

    def go_on(self, known: Place, numbers: Numbers) -> int:
        """Let the next pass go on from a checkpoint's place; return the number of batches that this rank has left."""
        self.resume(known)
        self._numbers = numbers
        if hasattr(self._sampler, "set_epoch"):
            # Lightning does so after workers have been asked for the first batches.
            self._sampler.set_epoch(known.iteration)
        assert isinstance(self.order, Samples)
        return self.order.left(known.samples)

    @property
    def _sampler(self) -> Any:
        return getattr(self.order, "sampler", None)

    def take(self, mark: object) -> None:
        """Count a batch as taken and used."""
        super().take(mark)
        self.step()

    def iterate(self, make: Callable[[], Any], is_kept: bool) -> tuple[Any, object]:
        """Begin an epoch; Lightning makes an iterator, and after some restarts a second one in its place."""
        if self._open is not None and not self.taken:
            self.close(self._open, is_over=False)
        is_resumed = self._resumed is not None and self._numbers is not None
        if is_resumed and self._numbers is not None:
            self._numbers.restore(again=True)
        begun = super().iterate(make, is_kept)
        self._entry = random_state.take() if is_resumed else None
        return begun

    def counted(self, inner: Any, mark: object) -> Iterator[Any]:
        """Yield the batches; before the first one, Lightning may have validated once more, which draws numbers."""
        batches = super().counted(inner, mark)
        if self._entry is not None:
            random_state.restore(self._entry)
        yield from batches


def _follow(loop: Any) -> None:
    refuse("Lightning")
    saved, loop._herringbone_saved = getattr(loop, "_herringbone_saved", None), None
    trackers = []
    for loader in loop._combined_loader.flattened:
        try:
            if not hasattr(loader, "_herringbone_tracker"):
                check(loader)
                tracker = LightningTracker(loader)
                if type(tracker.order) is not Samples:
                    raise ParallelError("its dataset has no indices, or its batches are the script's own")
                follow(loader, tracker)
        except (ParallelError, AttributeError) as error:
            notice(f"the place in a loader is not kept: {error}")
            return
        trackers.append(loader._herringbone_tracker)
    if saved is None:
        notice_unpassed()
        return
    if not saved:
        notice(NONE_SAVED)
        return
    peers = Peers.default()
    is_same = len(saved) == peers.size
    own = msgspec.msgpack.decode(random_state.to_bytes(saved[peers.rank if is_same else 0]), type=RankPlace)
    numbers = own.numbers(peers.rank, peers.size)
    places = [own.loaders[str(number)] for number in range(len(trackers))]
    left = [tracker.go_on(known, numbers) for tracker, known in zip(trackers, places, strict=True)]
    passed = _pass_over(loop, trackers, min(left))
    warnings.filterwarnings("ignore", message=_WARNING)
    progress = loop.epoch_loop.batch_progress.current
    used = max(len(loader) for loader in loop._combined_loader.flattened) - max(left) + passed
    if passed or (places[0].samples and not is_same):
        # Batches of another size, or for other ranks. A batch at whose end it saved is not counted as completed yet.
        progress.completed += used - progress.processed
        progress.ready = progress.started = progress.processed = used


def _pass_over(loop: Any, trackers: list[LightningTracker], left: int) -> int:
    """Begin behind the data that a `roll_back` passes over, and return its batches; at most those left of the epoch."""
    end, _ = passed_over(os.environ.get(CHECKPOINT_VARIABLE))
    epochs, accumulated = loop.epoch_loop, loop.trainer.accumulate_grad_batches
    steps = end - epochs.global_step
    if steps <= 0:
        return 0
    if not loop.trainer.lightning_module.automatic_optimization or steps * accumulated > left:
        notice(
            "roll_back: the data is NOT passed over: it reaches into another epoch, or the module makes its own steps"
        )
        return 0
    notice(f"roll_back: the data of {steps} steps is passed over, from step {epochs.global_step} to {end}")
    for tracker in trackers:
        tracker.pass_over(steps * accumulated)
    made = epochs.automatic_optimization.optim_progress.optimizer.step.total
    made.ready, made.completed = made.ready + steps, made.completed + steps
    epochs._batches_that_stepped += steps
    return int(steps * accumulated)


def _trackers(loop: Any) -> list[LightningTracker]:
    loaders = loop._combined_loader.flattened if loop._combined_loader is not None else []
    trackers = [getattr(loader, "_herringbone_tracker", None) for loader in loaders]
    followed = [tracker for tracker in trackers if isinstance(tracker, LightningTracker)]
    return followed if len(followed) == len(trackers) else []


def _own(loop: Any, trackers: list[LightningTracker]) -> torch.Tensor | None:
    is_over = bool(loop.epoch_loop.batch_progress.is_last_batch)
    places = kept(lambda: {str(n): tracker.of_checkpoint(is_over=is_over) for n, tracker in enumerate(trackers)})
    if places is None:
        return None
    return random_state.to_tensor(msgspec.msgpack.encode(RankPlace(random_state.take(), places, Peers.default().size)))
