"""Record the steps of Gluon's trainers, in rehearsals.

Nobody can read the state of MXNet's random numbers, so a record has those of Python and NumPy alone.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import mxnet as mx

from herringbone_parallel.fingerprints import Array, Facts, Recorder
from herringbone_parallel.mxnet.arrays import flat
from herringbone_parallel.mxnet.parameters import data_of


def record() -> None:
    """Record the steps of this process from now on, and send them to the job's events."""
    recorder, inside = Recorder(), threading.local()
    block, trainer = mx.gluon.Block, mx.gluon.Trainer
    call = block.__call__
    # Of the blocks that were called since the last step; running statistics change in the forward.
    drops: list[bool] = []
    statistics: dict[str, Array] = {}

    def called(self: Any, *args: Any) -> Any:
        # A block without parameters is a loss.
        if getattr(inside, "block", False) or not mx.autograd.is_training() or not self.collect_params().keys():
            return call(self, *args)
        inside.block = True
        try:
            recorder.batch(lambda: [array.asnumpy() for array in args if isinstance(array, mx.nd.NDArray)])
            with recorder.noting("statistics"):
                drops.append(_draws(self))
                own = [
                    one for one in self.collect_params().values() if one.grad_req == "null" and one._data is not None
                ]
                statistics.update({one.name: data_of(one).asnumpy() for one in own if one.name not in statistics})
            return call(self, *args)
        finally:
            inside.block = False

    def wrapped(original: Any) -> Any:
        @functools.wraps(original)
        def stepped(self: Any, *args: Any, **options: Any) -> Any:
            with recorder.step(self, lambda: _facts(self, statistics, any(drops))):
                result = original(self, *args, **options)
            drops.clear()
            statistics.clear()
            return result

        return stepped

    block.__call__ = called
    trainer.step, trainer.update = wrapped(trainer.step), wrapped(trainer.update)


def _facts(trainer: Any, statistics: dict[str, Array], draws: bool) -> Facts:
    parameters = {parameter.name: parameter for parameter in trainer._params}
    state: dict[str, list[Array]] = {}
    for _, states in sorted(trainer._updaters[0].states.items() if trainer._updaters else ()):
        for number, array in enumerate(flat(states)):
            state.setdefault(f"state {number}", []).append(array.asnumpy())
    settings = {
        name.removeprefix("_"): value
        for name, value in vars(trainer.optimizer).items()
        if isinstance(value, (bool, int, float, str)) and name != "lr"
    }
    return Facts(
        {name: statistics[name] if name in statistics else data_of(one).asnumpy() for name, one in parameters.items()},
        frozenset(name for name, parameter in parameters.items() if parameter.grad_req == "null"),
        state,
        {**settings, "learning_rate": trainer.learning_rate},
        draws=draws,
    )


def _draws(block: Any) -> bool:
    return isinstance(block, mx.gluon.nn.Dropout) or any(map(_draws, block._children.values()))
