"""Save everything that a training goes on with by one call, and go on with it by another.

parts                     from                                 kept
model, optimizer          torch's model and optimizer states   on any mesh
loader                    `track`                              the place of rank 0; equal on all ranks
scheduler, scaler, ...    their `state_dict`                   that of rank 0
random numbers            `random_state`                       of each rank
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from herringbone_contract.checkpoint.roll_back import passed_over
from herringbone_contract.checkpoint.verification import has_any
from herringbone_contract.errors import ParallelError
from herringbone_contract.events import emit
from herringbone_contract.events.stops import stop_when_asked
from herringbone_parallel.job_folders import CHECKPOINT_VARIABLE, training_folder
from herringbone_parallel.torch.checkpoint import api, memory
from herringbone_parallel.torch.checkpoint.reading import pass_over
from herringbone_parallel.torch.checkpoint.remembering import Remembering
from herringbone_parallel.torch.checkpoint.states import decode, encode
from herringbone_parallel.torch.position import optimizer_states, own_buffers, random_state
from herringbone_parallel.torch.position.checks import full_ranks, refuse
from herringbone_parallel.torch.position.global_batch import divide
from herringbone_parallel.torch.position.loader import track
from herringbone_parallel.torch.position.orders import Samples
from herringbone_parallel.torch.position.rank_places import RankPlace, notice
from herringbone_parallel.torch.position.tracker import Place

_VERSION_1 = "herringbone_parallel.torch.model_parallel"
# Names of no part. Of the tensors with what is a rank's own, by the number of the rank.
_OWN = ".own"
# Of the large tensors in the states of other parts.
_LARGE = ".large"
_WITHOUT_BATCH = (
    "a step was completed after the end of the pass, without a batch of the loader: itertools.cycle keeps batches, and"
    " a prefetch of the script's own takes them ahead. Begin the loader for each epoch, and let its workers fetch ahead"
)
_SCALERS = tuple({scaler for scaler in (getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler) if scaler})


class Training:
    """The parts of a training, with the place of its data and its random numbers.

        training = Training(model=model, optimizer=optimizer, loader=loader, scheduler=scheduler)
        training.resume()
        for epoch in range(training.epoch, epochs):
            for batch in loader:
                ...
                optimizer.step()
                if training.step % 100 == 0:
                    training.save()
            scheduler.step()

    A part is a module, an optimizer, a `DataLoader`, or anything with `state_dict` and `load_state_dict`. `step` counts
    completed steps of the first optimizer; with a `GradScaler` also those that it passed over. `epoch` is that of the
    first loader. `folder` is `SM_CHECKPOINT_DIR` by default. Every rank makes, saves and resumes. When the job is asked
    to go, the first loader saves between two steps, and ends the script. Raises `ParallelError` for a part that cannot
    be saved, or that a checkpoint does not fit.
    """

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, **parts: Any) -> None:
        self.step = 0
        self._folder = folder
        self._pipeline = _pipeline(parts)
        ours = self._pipeline.names if self._pipeline is not None else set[str]()
        self._models = {n: part for n, part in parts.items() if isinstance(part, nn.Module) and n not in ours}
        self._optimizers = {name: part for name, part in parts.items() if isinstance(part, Optimizer)}
        loaders = {name: part for name, part in parts.items() if isinstance(part, DataLoader)}
        if full := full_ranks():
            if self._pipeline is not None or len(loaders) != 1:
                refuse("a Training of a pipeline, or of another number of loaders than one,")
            self._trackers = {name: divide(part, self._models.values(), full) for name, part in loaders.items()}
        else:
            self._trackers = {name: track(part) for name, part in loaders.items()}
        if self._pipeline is not None:
            for name, tracker in self._trackers.items():
                self._pipeline.check_loader(name, tracker.order.replicas)
        known = {*ours, *self._models, *self._optimizers, *self._trackers}
        self._others = {name: part for name, part in parts.items() if name not in known}
        for name, part in self._others.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise ParallelError(
                    f"the part {name!r} is a {type(part).__qualname__}, which has no state_dict and load_state_dict"
                )
        if self._trackers and not self._optimizers:
            raise ParallelError(
                f"the loader {next(iter(self._trackers))!r} has no optimizer beside it: its complete steps tell which"
                " samples are used. Give one of torch's as a part, too"
            )
        # The step of the last checkpoint, and of the last question whether the job is asked to go.
        self._saved = self._asked = 0
        for tracker in [*self._trackers.values()][:1]:
            tracker.between_steps = self._stop_when_asked
        self._remembering = Remembering()
        self._numbers = random_state.remember()
        self._owners = {name: self._owner(name, one) for name, one in self._optimizers.items() if name not in ours}
        self._count_steps()
        emit.pace = partial(_pace, weakref.ref(self))

    @property
    def epoch(self) -> int:
        """The epoch to go on in: that of the first loader, which counts how often it was begun."""
        return next((tracker.place().epoch for tracker in self._trackers.values()), 0)

    @property
    def batch(self) -> int:
        """The number of this epoch's batches that were used before the loop began: 0 for an epoch that begins.

            for number, batch in enumerate(loader, training.batch):

        It is that of the first loader.
        """
        return next((tracker.batch for tracker in self._trackers.values()), 0)

    @property
    def repeated(self) -> int:
        """The number of samples at the end of the newest batch that repeat others of the epoch.

            loss = losses[: len(losses) - training.repeated].mean()

        A `DistributedSampler` repeats less than one sample a rank, so that all ranks have as many. It is that of the
        first loader.
        """
        return next((tracker.repeated for tracker in self._trackers.values()), 0)

    def save(self, tag: str | None = None, *, in_background: bool = False) -> Any:
        """Save the checkpoint `step-<step>`, or of another tag; every rank calls, after a step.

        In the background, it returns a `PendingSave` as `async_save` does.
        """
        peers = _peers()
        # An earlier save may still talk in the background.
        api.finalize()
        state, contents = self._content(peers)
        save = api.async_save if in_background else api.save
        self._saved = self.step
        return save(training_folder(self._folder), tag or f"step-{self.step}", state, contents=contents, peers=peers)

    def _content(self, peers: api.Peers) -> tuple[dict[str, Any], api.Contents]:
        """Return what a checkpoint of now has; every rank calls."""
        state, mesh = self._state(), {}
        if self._pipeline is not None:
            state, mesh = {**state, **self._pipeline.state()}, self._pipeline.mesh()
        own, _ = peers.agree_same(partial(self._own, peers.size), "save", lambda _: "")
        state[_OWN] = {str(peers.rank): own}
        large: dict[str, torch.Tensor] = {}
        others = {name: encode(part.state_dict(), name, large) for name, part in self._others.items()}
        if large:
            state[_LARGE] = large
        kinds = {name: optimizer_states.kind(optimizer) for name, optimizer in self._optimizers.items()}
        extra = {"step": self.step, "others": others, "optimizers": kinds}
        return state, api.Contents(mesh=mesh, extra=extra)

    def _remember(self) -> None:
        """Save into memory, if this is a step to do so; every rank calls between two steps."""

        def start(target: Any) -> None:
            state, contents = self._content(peers)
            saver.start(target, f"step-{self.step}", state, contents, None, in_background=True)

        if not self._remembering.is_on:
            return
        peers = _peers()
        saver = api.saver_of(peers)
        self._remembering.at(self.step, peers, start, lambda: saver.is_idle)

    def resume(self, tag: str | None = None) -> bool:
        """Go on from the newest complete checkpoint, or that of a tag; every rank calls, before the first step.

        Without a tag, one that the job's hosts keep in memory counts, too. Returns False where no rank finds a
        checkpoint. After a `roll_back`, it also passes over the data up to the
        fault, whose steps count as made.
        """
        peers, folder = _peers(), training_folder(self._folder)
        # A save in the background may be the one to resume from.
        api.finalize()
        end, batches = passed_over(os.environ.get(CHECKPOINT_VARIABLE))
        is_there = tag is not None or has_any(folder) or memory.has_any(peers)
        [found, end, batches] = peers.begin_maxima([is_there, end, batches])()
        loaded = self._loaded(folder, tag, peers) if found else None
        if loaded is not None:
            self._load(*loaded, peers)
        memory.settle(None if loaded is None else loaded[0], peers)
        self._pass_over(end, batches)
        return loaded is not None

    def _load(self, found: memory.Newest, state: dict[str, Any], divided: Any, peers: Any) -> None:
        reader = found.reader
        extra = reader.extra
        for name, model in self._models.items():
            states.set_model_state_dict(model, state[name])
        for name, owner in self._owners.items():
            optimizer_states.put(owner, self._optimizers[name], state[name])
        if self._pipeline is not None:
            self._pipeline.load(divided)
        for name, part in self._others.items():
            saved = _of(extra["others"], name)
            part.load_state_dict(decode(saved, lambda name: reader.tensor(f"{_LARGE}.{name}")))
        # One rank alone may have other data.
        peers.agree(lambda: self._go_on(extra, reader, peers), "resume")
        if peers.rank == 0 and found.text:
            notice(f"resumes with {found.text}")

    @property
    def pace(self) -> tuple[int, int] | None:
        """The step that a loss of now belongs to, and the batches of a step; None where nobody could pass over some."""
        tracker, *others = [*self._trackers.values(), None]
        if others != [None] or tracker is None or type(tracker.order) is not Samples:
            return None
        return self.step - (self.step > 0 and not tracker.is_ahead), tracker.pace or tracker.taken or 1

    def _pass_over(self, end: int, batches: int) -> None:
        """Begin behind the step `end`: the data of the steps before it is not used again."""
        if end <= self.step or self.pace is None:
            return
        if _peers().rank == 0:
            steps = f"{end - self.step} steps is passed over, from step {self.step} to {end}"
            notice(f"roll_back: the data of {steps}, as .roll-back.json among the checkpoints says")
        [tracker] = self._trackers.values()
        tracker.pass_over((end - self.step) * max(batches, 1))
        self.step = end

    def _stop_when_asked(self) -> None:
        """Between two steps: save and end the script if the job is asked to go."""
        if self.step != self._asked:
            self._asked = self.step
            # The loop itself may have saved this step.
            stop_when_asked(api.finalize if self._saved == self.step else self.save)
            self._remember()

    def _loaded(self, folder: Path, tag: str | None, peers: Any) -> tuple[memory.Newest, dict[str, Any], Any] | None:
        """Return a checkpoint, its states, and what a pipeline's rank has of it.

        Without a tag, it passes over those that a rank finds damaged; None where there is no other.
        """
        passed: dict[str, str] = {}
        while True:
            try:
                found = memory.newest(folder, passed, peers) if tag is None else _tagged(folder, tag, peers)
            except Exception as error:
                pass_over(error, passed, peers.gather)
                if tag is not None:
                    raise
                continue
            if found is None:
                return None
            reader = found.reader
            kinds = reader.extra.get("optimizers") if isinstance(reader.extra, dict) else None
            if kinds is None:
                raise ParallelError(
                    f"the checkpoint {reader.tag!r} has no places of loaders: Training.save wrote it not"
                )
            for name, optimizer in self._optimizers.items():
                optimizer_states.check_kind(name, optimizer, kinds.get(name))
            state = self._state(reader)
            # For their checksums: what follows the load reads them, and does not go back.
            others = [name for name in reader.names if name.startswith((_OWN, _LARGE))]
            unused = {name: torch.empty(reader.shape(name), dtype=torch.uint8) for name in others}
            try:
                divided = (
                    None if self._pipeline is None else peers.agree(partial(self._pipeline.read, reader), "resume")
                )
                api.load(folder, {**state, **unused}, reader, peers=peers)
                return found, state, divided
            except Exception as error:
                pass_over(error, passed, peers.gather)
                if tag is not None:
                    raise

    def _go_on(self, extra: dict[str, Any], reader: Any, peers: Any) -> None:
        ranks = reader.manifest.world_size
        is_same = ranks == peers.size
        mine = peers.rank if is_same else 0

        def read(rank: int) -> RankPlace:
            return msgspec.msgpack.decode(random_state.to_bytes(reader.tensor(f"{_OWN}.{rank}")), type=RankPlace)

        own = read(mine)

        def others(name: str) -> list[Place]:
            return [read(rank).loaders[name] for rank in range(ranks) if rank != mine]

        for name, tracker in self._trackers.items():
            tracker.resume(_of(own.loaders, name), partial(others, name))
        for name, buffers in own.buffers.items() if is_same else ():
            own_buffers.put(self._models[name], buffers)
        self.step = self._saved = self._asked = extra["step"]
        random_state.go_on(own.random, *(() if is_same else (self.step, peers.rank)))

    def _state(self, reader: Any = None) -> dict[str, Any]:
        """Return the state of models and optimizers; with a reader, room for what it has."""
        state: dict[str, Any] = {}
        for name, model in self._models.items():
            state[name] = states.get_model_state_dict(model)
        for name, owner in self._owners.items():
            state[name] = optimizer_states.take(name, owner, self._optimizers[name], reader)
        return state

    def _own(self, ranks: int) -> torch.Tensor:
        places = {name: one.place() for name, one in self._trackers.items()}
        # Numbers that were drawn since the step belong to batches that come again.
        is_ahead = any(one.is_ahead for one in self._trackers.values())
        numbers = self._numbers if is_ahead else random_state.remember()
        # A process alone has them in the model's state.
        buffers = {name: own_buffers.take(model) for name, model in self._models.items() if ranks > 1}
        return random_state.to_tensor(msgspec.msgpack.encode(RankPlace(numbers(), places, ranks, buffers)))

    def _owner(self, name: str, optimizer: Optimizer) -> nn.Module:
        mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model in self._models.values():
            if mine <= {id(parameter) for parameter in model.parameters()}:
                return model
        raise ParallelError(f"the optimizer {name!r} has parameters of no single model among the parts: give that, too")

    def _count_steps(self) -> None:
        scalers: list[Any] = [
            part for part in self._others.values() if isinstance(part, _SCALERS) and part.is_enabled()
        ]
        if scalers:
            # A scaler may pass over an optimizer's step, whose samples are used all the same.
            scalers[0].update = _then(scalers[0].update, self._completed)
        for number, optimizer in enumerate(self._optimizers.values()):
            if scalers:
                continue
            if self._pipeline is not None:
                # Of version 1's optimizer, torch's hooks would miss the steps that its own scale of the loss skips.
                setattr(optimizer, "step", _then(optimizer.step, partial(self._completed, number == 0)))  # noqa: B010
            else:
                optimizer.register_step_post_hook(lambda *_, first=number == 0: self._completed(first))

    def _completed(self, is_first: bool = True) -> None:
        self.step += is_first
        self._numbers = random_state.remember()
        trackers = self._trackers.values()
        if is_first and trackers and all(tracker.is_idle for tracker in trackers):
            for tracker in trackers:
                tracker.note(_WITHOUT_BATCH)
        for tracker in trackers:
            tracker.step()


def _pace(training: weakref.ref[Training]) -> tuple[int, int] | None:
    found = training()
    return None if found is None else found.pace


def _pipeline(parts: dict[str, Any]) -> Any:
    if not any(type(part).__module__.startswith(_VERSION_1) for part in parts.values()):
        return None
    # A training without such a model loads nothing of that library.
    from herringbone_parallel.torch.position.pipeline import PipelineParts

    return PipelineParts(parts)


def _peers() -> api.Peers:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        raise ParallelError("several ranks, and no process group, in which they save together: init_process_group()")
    return api.Peers.default()


def _tagged(folder: Path, tag: str, peers: api.Peers) -> memory.Newest:
    return memory.Newest(memory.agreed(lambda: api.Reader.find(folder, tag), peers), None, "")


def _of(saved: dict[str, Any], name: str) -> Any:
    if name not in saved:
        raise ParallelError(f"the checkpoint has no part {name!r}; it has {', '.join(saved) or 'none'}")
    return saved[name]


def _then(call: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    @wraps(call)
    def called(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        after()
        return result

    return called
