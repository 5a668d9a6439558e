"""Memory that a step of a pipeline no longer needs is released at once, and not when the step or the script ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
from torch import nn

from tests.parallel.torch.ranks import Ranks

TWO = {"partitions": 2, "microbatches": 4, "auto_partition": False, "default_partition": 0}
# Rows and columns of a message that fits behind its header.
ROWS, WIDTH = 64, 256


class _Watch(torch.autograd.Function):
    """Calls a function in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        ctx.call()
        return gradient, None


def content(queue: SimpleQueue[Any]) -> list[Any]:
    """Take all out of a queue."""
    return [queue.get() for _ in range(queue.qsize())]


class Received(nn.Linear):
    """A layer that notes the leaf at which the graph of its rank ends: it holds the received input."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        # Not lists, of which each microbatch would have its own.
        self.leaves: SimpleQueue[weakref.ref[torch.Tensor]] = SimpleQueue()
        self.call: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The alias that the call gets, and behind it the leaf.
        assert x.grad_fn is not None
        self.leaves.put(weakref.ref(x.grad_fn.next_functions[0][0].variable))
        return _Watch.apply(super().forward(x), self.call)  # type: ignore[no-any-return]

    @property
    def held(self) -> int:
        """The number of inputs that are still there."""
        gc.collect()
        leaves = content(self.leaves)
        for leaf in leaves:
            self.leaves.put(leaf)
        return sum(leaf() is not None for leaf in leaves)


class Sided(nn.Module):
    """Calls `side` on the second rank, whose result nobody uses, and then goes back to the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.side, self.head = Received(), Received()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        self.side(x)
        return self.head(self.second(x))  # type: ignore[no-any-return]


def put_on_second(*modules: nn.Module) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    for module in modules:
        smp.set_partition(module, 1)


def step_of_sided() -> list[tuple[int, int]]:
    """Return the inputs of `side` and of `head` that the second rank holds in each backward of `head`."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module = Sided()
    put_on_second(module.side, module.head)
    model = smp.DistributedModel(module)
    held: SimpleQueue[tuple[int, int]] = SimpleQueue()
    module.head.call = lambda: held.put((module.side.held, module.head.held))

    @smp.step
    def train(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        model.backward(loss)
        return loss

    for _ in range(2):
        train(torch.ones(4 * ROWS, WIDTH))
    # In the first step the microbatches run one after another.
    return content(held)[4:]


def test_a_segment_whose_results_nobody_can_ask_for_keeps_no_input(ranks: Ranks) -> None:
    _, second = ranks.run(step_of_sided, {**TWO, "pipeline": "simple"})
    # All four microbatches have ended their forwards before the first backward. Their losses hold no inputs either:
    # each microbatch that has ended has one less.
    assert [side for side, _ in second] == [0, 0, 0, 0]
    assert [head for _, head in second] == [4, 3, 2, 1]


def is_message(item: object) -> bool:
    """Say whether this is a header with the data of one microbatch behind it."""
    size = 4 * ROWS * WIDTH
    return type(item) is torch.Tensor and item.dtype == torch.uint8 and size < item.numel() < 2 * size


def steps_of_many_messages() -> list[int]:
    """Return the sent messages with a microbatch's data that this rank holds after each step."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    put_on_second(module[1])
    model = smp.DistributedModel(module)

    @smp.step
    def train(x: torch.Tensor) -> None:
        model.backward(model(x).sum())

    held = []
    for _ in range(4):
        train(torch.ones(4 * ROWS, WIDTH))
        smp.barrier()
        held.append(sum(is_message(item) for item in gc.get_objects()))
    return held


def test_messages_are_released_when_they_have_arrived(ranks: Ranks) -> None:
    first, second = ranks.run(steps_of_many_messages, {**TWO, "pipeline": "interleaved"})
    # The gradients answer the values. Nothing answers the last gradients before the next step.
    assert first == [0, 0, 0, 0]
    assert max(second) <= 4


def foreign_weights() -> tuple[int, bool]:
    """Return the weights of a recurrent layer that are still there, and whether this rank has the layer."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), Last(8, 8)))
    put_on_second(module[1])
    weights = [weakref.ref(weight) for weight in module[1][1].parameters()]
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    @smp.step
    def train(x: torch.Tensor) -> None:
        model.backward(model(x).sum())

    train(torch.ones(4, 3, 8))
    optimizer.step()
    gc.collect()
    return sum(weight() is not None for weight in weights), smp.pp_rank() == 1


class Last(nn.LSTM):
    """An LSTM that returns its output alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x)[0]  # type: ignore[no-any-return]


def test_weights_of_other_ranks_leave_the_lists_that_a_module_keeps(ranks: Ranks) -> None:
    # `nn.LSTM` keeps its 4 weights in `_flat_weights`, too.
    assert ranks.run(foreign_weights, dict(TWO)) == [(0, False), (4, True)]


class Notes:
    """An object that a model makes in each forward, and in which its layers leave tensors, as in a cache of keys."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []


class Noting(nn.Linear):
    """A layer that leaves its result in the notes."""

    def forward(self, x: torch.Tensor, notes: Notes) -> torch.Tensor:  # type: ignore[override]
        notes.tensors.append(super().forward(x).detach())
        return notes.tensors[-1] + x


class WithNotes(nn.Module):
    """Passes fresh notes from layer to layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Noting(8, 8), Noting(8, 8)
        self.made: list[weakref.ref[Notes]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        notes = Notes()
        self.made.append(weakref.ref(notes))
        return self.second(self.first(x, notes), notes)  # type: ignore[no-any-return]


def steps_with_notes() -> tuple[int, int]:
    """Return the notes that were made in three steps, and those that are still there."""
    import herringbone_parallel.torch.model_parallel.api as smp

    module = WithNotes()
    put_on_second(module.second)
    model = smp.DistributedModel(module)

    @smp.step
    def train(x: torch.Tensor) -> torch.Tensor:
        return model(x).sum()  # type: ignore[no-any-return]

    for _ in range(3):
        train(torch.ones(4, 8))
    gc.collect()
    return len(module.made), sum(notes() is not None for notes in module.made)


def test_objects_that_a_model_passes_to_its_layers_end_with_the_step(ranks: Ranks) -> None:
    assert ranks.run(steps_with_notes, dict(TWO)) == [(12, 0), (12, 0)]
