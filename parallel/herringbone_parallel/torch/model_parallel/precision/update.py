"""The way from a step's gradients to those that the wrapped optimizer uses: master weights and the loss's scale."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel.precision.loss_scale import LossScale
from herringbone_parallel.torch.model_parallel.precision.masters import MasterWeights

# Whether the flag holds on any rank of the job; every rank must ask.
AnyRank = Callable[[bool], bool]


class PreciseUpdate:
    """One optimizer's master weights and loss scale.

        update = PreciseUpdate(optimizer, MasterWeights(), scale, any_rank)
        if update.unscale(backwards):               # False on every rank if a gradient of one is infinite
            update.run(optimizer.step)
        update.end(backwards, overflow=False)

    `masters` is None where parameters are updated in place, and `scale` where the loss is not scaled. `backwards`
    counts the backwards so far, by which a second `unscale` of the same gradients is told from one of newer ones.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        masters: MasterWeights | None,
        scale: LossScale | None,
        any_rank: AnyRank,
    ) -> None:
        self._optimizer = optimizer
        self.masters = masters
        self.scale = scale
        self._any_rank = any_rank
        # The count of backwards at the last `unscale`; None if the gradients are not unscaled.
        self._unscaled_at: int | None = None
        self._finite = True
        # The count of backwards whose gradients were used or dropped, and a loaded scale that waits for that.
        self._used_at = 0
        self._loaded: Mapping[str, Any] | None = None

    @property
    def active(self) -> bool:
        """Say whether gradients are changed on their way to the optimizer."""
        return self.masters is not None or self.scale is not None

    def unscale(self, backwards: int) -> bool:
        """Give the optimizer unscaled gradients in its parameters' type; a second call changes nothing.

        Returns whether all gradients of all ranks are finite; without a scale nobody looks. Every rank must call it.
        """
        if not self.active or self._unscaled_at == backwards:
            return self._finite
        if self._unscaled_at is not None:
            raise ParallelError(
                "a step ran between the clipping of the gradients and optimizer.step(), and would add scaled gradients"
                " to clipped ones: clip after the last step that adds to the gradients"
            )
        factor = 1.0 if self.scale is None else 1.0 / self.scale.value
        copies: set[int] = set()
        if self.masters is not None:
            self.masters.take_gradients(factor)
            copies = {id(copy) for copy in self.masters.copies()}
        finite = True
        if self.scale is not None:
            gradients = []
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        if id(parameter) not in copies and factor != 1.0:
                            parameter.grad.detach().mul_(factor)
                        gradients.append(parameter.grad)
            # One flag for all, so that a GPU is asked once.
            flags = [gradient.detach().isfinite().all() for gradient in gradients]
            finite = not self._any_rank(bool(flags) and not bool(torch.stack(flags).all()))
        self._unscaled_at, self._finite = backwards, finite
        return finite

    def run(self, step: Callable[[], object]) -> object:
        """Run the optimizer's step on the master weights, and give the parameters their new values."""
        if self.masters is None:
            return step()
        self.masters.refresh()
        result = step()
        self.masters.publish()
        return result

    def end(self, backwards: int, *, overflow: bool) -> None:
        """Adapt the scale to the step that has ended, and wait for the next gradients."""
        stuck = self.scale is not None and self.scale.update(overflow=overflow)
        self.forget(backwards)
        if self.scale is not None and stuck:
            warnings.warn(
                f"an infinite or undefined gradient with the smallest loss scale, {self.scale.value:g}: the step is"
                " skipped. If each step is, the loss itself is infinite or undefined",
                stacklevel=3,
            )

    def forget(self, backwards: int) -> None:
        """Consider the gradients of all backwards so far as not unscaled: they were dropped, or used."""
        self._unscaled_at, self._finite, self._used_at = None, True, backwards
        if self.scale is not None and self._loaded is not None:
            self.scale.load_state_dict(self._loaded)
            self._loaded = None

    def load_scale(self, scale: Mapping[str, Any], backwards: int) -> None:
        """Take over the scale of a checkpoint, at once if no gradients have the present one, and otherwise after them.

        A hook after a step may load a checkpoint, before the optimizer divides the gradients of that step by the scale.
        """
        if self.scale is None:
            return
        self._loaded = scale
        if backwards == self._used_at:
            self.forget(backwards)

    def scale_state(self) -> Mapping[str, Any] | None:
        """Return what a checkpoint keeps of the scale; None without a scale."""
        return self._loaded or (None if self.scale is None else self.scale.state_dict())
