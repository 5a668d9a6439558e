"""A unit: parameters that are gathered, freed and reduced together.

    between steps   `parameter.data` is this rank's piece, flat, of one part that the optimizer updates in place
    in a step       `parameter.data` is a view of a flat tensor of all elements, whose memory comes and goes

The memory goes by resizing the flat tensor's storage to nothing, so that the tensors that autograd has saved of a
parameter stay the same tensors, and have their values again after the next gather.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.shards.group import ShardGroup
from herringbone_parallel.torch.model_parallel.shards.layout import Layout, Named


class Unit(Layout):
    """Some parameters, of which this rank keeps its part.

    unit = Unit(named_parameters, group)            # from here on each parameter is a piece
    unit.open()                                     # the parameters have their whole shapes, and no memory
    unit.gather()
    ...                                             # forward and backward
    unit.reduce()                                   # adds to the part's gradients
    unit.free()
    unit.close([True, False])                       # pieces again; with gradients where True
    """

    def __init__(self, named: Named, group: ShardGroup) -> None:
        super().__init__(named, group.size)
        self._group = group
        self.own = self.ranges(group.index)
        self._part = torch.zeros(self.length, dtype=self.dtype, device=self.device)
        self._pieces = self.pieces(self._part, group.index)
        self._flat: torch.Tensor | None = None
        self._gathered = False
        # The sum of the reduced gradients of this step, for the part.
        self._sum: torch.Tensor | None = None
        # By parameter: True if it had a gradient in this step on this rank.
        self.used = [False] * len(self.parameters)
        # The gradients of the pieces from earlier steps.
        self._earlier: list[torch.Tensor | None] = [None] * len(self.parameters)
        self._split()

    @property
    def elements(self) -> int:
        """The number of elements of the gathered parameters."""
        return self.length * self.size

    @property
    def gathered(self) -> bool:
        """Say whether the parameters have their values in this step."""
        return self._gathered

    def _split(self) -> None:
        for parameter, piece, (start, end) in zip(self.parameters, self._pieces, self.own, strict=True):
            piece.copy_(parameter.detach().reshape(-1)[start:end])
            gradient = parameter.grad
            parameter.grad = None
            parameter.data = piece
            if gradient is not None:
                parameter.grad = gradient.reshape(-1)[start:end].clone()

    def open(self) -> None:
        """Give the parameters their whole shapes, for a step."""
        flat = torch.empty(self.elements, dtype=self.dtype, device=self.device)
        for number, (parameter, view) in enumerate(zip(self.parameters, self.views(flat), strict=True)):
            piece = self._pieces[number]
            if parameter.data_ptr() != piece.data_ptr() and piece.numel():
                # The script has given the parameter other values by `parameter.data = ...`.
                piece.copy_(parameter.detach())
            self._earlier[number], parameter.grad = parameter.grad, None
            parameter.data = view
        flat.untyped_storage().resize_(0)
        self._flat, self._gathered, self._sum = flat, False, None
        self.used = [False] * len(self.parameters)

    def gather(self) -> None:
        """Give the parameters their values; every rank of the group must call it."""
        if self._gathered:
            return
        assert self._flat is not None
        self._flat.untyped_storage().resize_(self.elements * self._flat.element_size())
        self._group.gather(self._flat, self._part)
        self._gathered = True

    def free(self) -> None:
        """Free the memory of the gathered parameters, after taking over what the step wrote into them."""
        if not self._gathered:
            return
        # Always: torch counts no version for a write through `parameter.data`.
        self.take()
        assert self._flat is not None
        self._flat.untyped_storage().resize_(0)
        self._gathered = False

    def take(self) -> None:
        """Take this rank's part over from the gathered parameters."""
        assert self._flat is not None
        with torch._C.DisableTorchFunctionSubclass():
            for parameter, view in zip(self.parameters, self.views(self._flat), strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    # The step has given the parameter other values by `parameter.data = ...`.
                    view.copy_(parameter.detach())
                    parameter.data = view
        first = self._group.index * self.length
        self._part.copy_(self._flat[first : first + self.length])

    @property
    def pending(self) -> bool:
        """Say whether a parameter has a gradient that is not reduced."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def reduce(self) -> None:
        """Add the average of the gradients to this rank's part, and free them; every rank of the job must call it."""
        flat = torch.zeros(self.elements, dtype=self.dtype, device=self.device)
        for number, (parameter, view) in enumerate(zip(self.parameters, self.views(flat), strict=True)):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise ParallelError(
                    f"the gradient of {self.names[number]!r} is sparse, and cannot be divided over ranks; make the"
                    " embedding with sparse=False"
                )
            view.copy_(gradient)
            self.used[number] = True
            parameter.grad = None
        part = self._group.reduce(flat)
        self._sum = part if self._sum is None else self._sum.add_(part)

    def close(self, wanted: Sequence[bool]) -> None:
        """Make the parameters pieces again; those of `wanted` get their part of the reduced gradients."""
        gradients = None if self._sum is None else self.pieces(self._sum, self._group.index)
        for number, (parameter, piece) in enumerate(zip(self.parameters, self._pieces, strict=True)):
            parameter.grad = None
            parameter.data = piece
            # An empty piece has an empty gradient: a script need not ask whether this rank has elements.
            gradient = self._earlier[number]
            if gradients is not None and wanted[number]:
                gradient = gradients[number] if gradient is None else gradient.add_(gradients[number])
            parameter.grad = gradient
        self._flat = self._sum = None
        self._gathered = False
        self._earlier = [None] * len(self.parameters)
