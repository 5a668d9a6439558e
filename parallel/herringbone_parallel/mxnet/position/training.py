"""`Training` for loops of Gluon.

Nobody can read the state of MXNet's random numbers. So they are seeded at each checkpoint, from the loader's seed, the
step and the rank: equal numbers after a restart, and others on each rank. To seed them takes some milliseconds.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_contract.events.stops import stop_when_asked
from herringbone_parallel.mxnet.arrays import element_of, flat, store
from herringbone_parallel.mxnet.parameters import data_of
from herringbone_parallel.mxnet.position.loader import DataLoader, peers
from herringbone_parallel.position.parts import Attributes, Part, Place, Random, Variable, Variables, drawn
from herringbone_parallel.position.training import Saver

# Of an optimizer: what MXNet sets from the others, and parameters.
_OPTIMIZERS = ("_index_update_count", "param_dict", "lr_scheduler", "sym_info", "idx2name")


class Training:
    """The parts of a training, with the place of its data and its random numbers.

        training = Training(model=net, trainer=trainer, loader=loader)
        training.resume()
        for epoch in range(training.epoch, epochs):
            for inputs, targets in loader:
                ...
                trainer.step(len(inputs))
                if training.step % 100 == 0:
                    training.save()

    A part is a block, a trainer, a `DataLoader` of this module or a metric. `step` counts completed steps of the
    first trainer; its schedule of learning rates comes along. `folder` is `SM_CHECKPOINT_DIR` by default. Every rank
    makes, saves and resumes. When the job is asked to go, the first loader saves between two steps, and ends the
    script; numbers of dropout then differ from those of a training without that checkpoint. Raises `ParallelError` for
    a part that cannot be saved, or that a checkpoint does not fit.
    """

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, **parts: Any) -> None:
        # The completed steps, and the step of the last checkpoint.
        self.step, self._saved = 0, -1
        self._rank = peers().rank
        self._loaders = [part for part in parts.values() if isinstance(part, DataLoader)]
        trainers = [part for part in parts.values() if isinstance(part, mx.gluon.Trainer)]
        if self._loaders and not trainers:
            raise ParallelError("the loader has no trainer beside it, whose steps tell which samples are used: give it")
        adapted: dict[str, Part] = {}
        for name, part in parts.items():
            adapted |= _parts_of(name, part)
        self._saver = Saver(folder, {**adapted, ".random": Random()}, f"mxnet {mx.__version__}")
        for loader in self._loaders:
            loader.steps = lambda: self.step
        if self._loaders:
            first = self._loaders[0]
            first.between_steps = partial(stop_when_asked, self._save_last, lambda: not first.is_ahead())
        if trainers:
            self._count(trainers[0])

    @property
    def epoch(self) -> int:
        """The epoch to go on in: that of the first loader."""
        return self._loaders[0].order.place()[0] if self._loaders else 0

    def save(self, tag: str | None = None) -> None:
        """Save the checkpoint `step-<step>`, or of another tag; every rank calls, after a step."""
        if any(loader.is_ahead() for loader in self._loaders):
            raise ParallelError(
                "the batch that the loop took last waits for a step of the trainer: save after the step, because no"
                " checkpoint has gradients"
            )
        self._saver.save(tag or f"step-{self.step}", {"step": self.step, "epoch": self.epoch}, peers())
        self._saved = self.step
        self._seed()

    def resume(self, tag: str | None = None) -> bool:
        """Go on from the newest complete checkpoint, or that of a tag; every rank calls, before the first step.

        Returns False, and changes nothing, where no rank finds a checkpoint.
        """
        found = self._saver.find(tag, peers())
        if found is None:
            return False
        self._saver.put(found, list(self._saver.parts), peers())
        self.step = found.extra["step"]
        self._seed()
        return True

    def _save_last(self) -> None:
        if self.step != self._saved:
            self.save()

    def _count(self, trainer: Any) -> None:
        update = trainer._update

        def updated(*arguments: Any, **options: Any) -> None:
            update(*arguments, **options)
            self.step += 1

        trainer._update = updated

    def _seed(self) -> None:
        seed = self._loaders[0].order.seed if self._loaders else 0
        mx.random.seed(int(drawn((seed, self.step, self._rank), 1)[0] % 2**31))


def _parts_of(name: str, part: Any) -> dict[str, Part]:
    if isinstance(part, mx.gluon.Trainer):
        _check(name, part)
        optimizer = part.optimizer
        parts: dict[str, Part] = {
            name: Variables(name, lambda: _states(name, part), lambda: _make_states(part)),
            f"{name}.optimizer": Attributes(name, optimizer, _OPTIMIZERS),
        }
        if optimizer.lr_scheduler is not None:
            parts[f"{name}.schedule"] = Attributes(name, optimizer.lr_scheduler)
        return parts
    if isinstance(part, mx.gluon.Block):
        return {name: Variables(name, lambda: _parameters(part), lambda: None)}
    if isinstance(part, DataLoader):
        return {name: Place(part.order)}
    if isinstance(part, mx.metric.EvalMetric):
        return {name: Attributes(name, part)}
    kind = f"{type(part).__module__}.{type(part).__qualname__}"
    if isinstance(part, (mx.gluon.data.DataLoader, mx.io.DataIter)):
        raise ParallelError(
            f"the part {name!r} is a {kind}, which has no place: use DataLoader of herringbone_parallel.mxnet.position,"
            " with an ArrayDataset, or ImageRecordDataset for a record file"
        )
    raise ParallelError(f"the part {name!r} is a {kind}: a part is a block, a trainer, a DataLoader or a metric")


def _check(name: str, trainer: Any) -> None:
    store = trainer._kvstore_params["kvstore"]
    if "dist" in str(getattr(store, "type", store)):
        raise ParallelError(f"the trainer {name!r} has the key-value store {store}, whose servers have the optimizer")
    if len(trainer._contexts or ()) > 1:
        raise ParallelError(f"the trainer {name!r} is on {len(trainer._contexts)} devices: start a rank per device")


def _parameters(block: Any) -> list[Variable]:
    found = []
    for name, parameter in block.collect_params().items():
        is_shared = parameter.grad_req != "null"
        dtype = np.dtype(parameter.dtype).name
        read, assign = partial(_data, parameter), partial(_assign, parameter)
        found.append(Variable(name, parameter.shape or (), dtype, is_shared, read, assign))
    return found


def _data(parameter: Any) -> Any:
    return data_of(parameter).asnumpy()


def _assign(parameter: Any, value: Any) -> None:
    parameter.set_data(mx.nd.array(value, dtype=value.dtype))


def _states(name: str, trainer: Any) -> list[Variable]:
    if trainer._update_on_kvstore:
        raise ParallelError(f"the trainer {name!r} updates on its key-value store: give it update_on_kvstore=False")
    arrays = [
        (f"{index}.{number}", array)
        for index, state in sorted(trainer._updaters[0].states.items())
        for number, array in enumerate(flat(state))
    ]
    return [
        Variable(label, array.shape, element_of(array), True, array.asnumpy, partial(store, array=array))
        for label, array in arrays
    ]


def _make_states(trainer: Any) -> None:
    updater = trainer._updaters[0]
    for index, parameter in enumerate(trainer._params):
        if parameter.grad_req != "null":
            updater.states[index] = trainer.optimizer.create_state_multi_precision(index, data_of(parameter))
            updater.states_synced[index] = True
