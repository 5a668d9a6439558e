"""The arguments of a step: those of the pipeline's first rank count on all its ranks, as in SMP v1.

There the first rank alone ran the code of the step function. So scripts that were written for it may read their batches
in an order of each rank's own. Here every rank runs that code, one uses the inputs and another the labels.

    [1] DIGEST      first rank to all      a checksum of its arguments, the step's seed, and the model's kind
    [2] WANTED      any rank to the first  only from a rank whose checksum differs
    [3] ARGUMENTS   the first rank's answer

The first rank waits for nobody. As long as all ranks read the same data, only the checksum travels.
"""

from __future__ import annotations

import pickle
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.structure import leaves_of, rebuild
from herringbone_parallel.torch.model_parallel.runtime.messages import Purpose

Parts = Sequence[tuple[tuple[Any, ...], dict[str, Any]]]

# A checksum reads all bytes of small tensors, and this many values of others, spread over the tensor.
_WHOLE_BYTES, _SAMPLED_VALUES = 2**20, 2**14
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _Sent(NamedTuple):
    """A leaf of the first rank's arguments: a tensor on the CPU, or a value."""

    content: Any
    on_device: bool = False
    requires_grad: bool = False


class Arguments:
    """The arguments of one step on one rank; `split` cuts them into `parts`, one per microbatch.

    arguments = Arguments(args, kwargs, split, device)
    arguments.agree(rank, peers, send, wait)
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], split: Callable[..., Parts], device: torch.device
    ) -> None:
        self._structure = (args, kwargs)
        self._split = split
        self._device = device
        self.parts = split(args, kwargs)
        # The seed of the step's random numbers, and the kind of the model for the shape book.
        self.seed = 0
        self.kind: int | None = None

    def agree(
        self,
        rank: int,
        peers: Sequence[int],
        send: Callable[[int, Purpose, Any], None],
        wait: Callable[[Purpose], Any],
    ) -> None:
        """Take the first rank's seed and kind, and its arguments if they are others.

        `send` sends to a pipeline rank; `wait` returns what the first one has sent. Raises `ParallelError` if the
        arguments are so different that those of the first rank do not fit.
        """
        if rank == 0:
            own = (digest(self._structure), self.seed, self.kind)
            for peer in peers:
                send(peer, Purpose.DIGEST, own)
            return
        theirs, self.seed, self.kind = wait(Purpose.DIGEST)
        if theirs != digest(self._structure):
            send(0, Purpose.WANTED, None)
            self._adopt(wait(Purpose.ARGUMENTS))

    def leaves(self) -> list[Any]:
        """Return the arguments for another rank; None in place of what cannot travel, such as the model."""
        return [_sent(leaf) for leaf in leaves_of(self._structure)]

    def _adopt(self, sent: Sequence[_Sent | None]) -> None:
        own = leaves_of(self._structure)
        if len(own) != len(sent):
            raise ParallelError(
                f"the step has {len(sent)} values among its arguments on the pipeline's first rank, and {len(own)} on"
                " this one: call it with arguments of the same structure on every rank"
            )
        warnings.warn(
            "the ranks of this pipeline have called the step with different arguments; those of its first rank count."
            " Use the same seed and sampler on every rank (torch.manual_seed, rank=smp.dp_rank()): then nothing has to"
            " be sent",
            stacklevel=2,
        )
        adopted = [mine if theirs is None else self._received(theirs) for mine, theirs in zip(own, sent, strict=True)]
        args, kwargs = rebuild(self._structure, adopted)
        self.parts = self._split(args, kwargs)

    def _received(self, sent: _Sent) -> Any:
        if not isinstance(sent.content, torch.Tensor):
            return sent.content
        tensor = sent.content.to(self._device) if sent.on_device else sent.content
        return tensor.requires_grad_(sent.requires_grad)


def digest(structure: Any) -> int:
    """Return a checksum of the tensors, numbers and strings in a structure.

    >>> one, other = torch.tensor([1, 2]), torch.tensor([2, 1])
    >>> digest((one, "a")) == digest((one.clone(), "a")) != digest((other, "a"))
    True
    """
    checksum = 0
    for leaf in leaves_of(structure):
        if isinstance(leaf, torch.Tensor):
            checksum = zlib.crc32(repr((leaf.shape, leaf.dtype, leaf.requires_grad)).encode(), checksum)
            checksum = zlib.crc32(_bytes(leaf), checksum)
        else:
            content = pickle.dumps(leaf) if _travels(leaf) else type(leaf).__qualname__.encode()
            checksum = zlib.crc32(content, checksum)
    return checksum


def _bytes(tensor: torch.Tensor) -> Any:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or not tensor.numel():
        return b""
    values = tensor.detach()
    values = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
    if values.is_cuda or values.numel() * values.element_size() > _WHOLE_BYTES:
        values = values[:: max(1, values.numel() // _SAMPLED_VALUES)]
    return values.cpu().contiguous().view(torch.uint8).numpy()


def _sent(leaf: Any) -> _Sent | None:
    if isinstance(leaf, torch.Tensor):
        # Cloned, because pickle would send the whole storage of a view.
        return _Sent(leaf.detach().cpu().clone(), leaf.device.type != "cpu", leaf.requires_grad)
    return _Sent(leaf) if _travels(leaf) else None


def _travels(leaf: Any) -> bool:
    return isinstance(leaf, _PLAIN) or type(leaf).__module__ == "numpy"
