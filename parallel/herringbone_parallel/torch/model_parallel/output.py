"""`StepOutput`: the tensors of all microbatches in place of one returned tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class StepOutput:
    """A tensor that the step function returned, once per microbatch, on every rank of the pipeline.

    loss = train_step(images, labels)
    loss.reduce_mean()      # a tensor: the mean over the microbatches
    loss.outputs            # the list, by microbatch
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> torch.Tensor:
        """Return the mean over the microbatches."""
        return torch.stack([output.to(_summable(output)) for output in self.outputs]).mean(0)

    def reduce_sum(self) -> torch.Tensor:
        """Return the sum over the microbatches."""
        return self.stack().sum(0)

    def concat(self) -> torch.Tensor:
        """Return the microbatches joined along axis 0, in order."""
        return torch.cat(self.outputs)

    def stack(self) -> torch.Tensor:
        """Return the microbatches stacked along a new axis 0, in order."""
        return torch.stack(self.outputs)

    def detach(self) -> StepOutput:
        """Return the same tensors without their graphs."""
        return StepOutput([output.detach() for output in self.outputs])

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


def _summable(output: torch.Tensor) -> torch.dtype:
    # The mean of integers is no integer.
    return output.dtype if output.is_floating_point() or output.is_complex() else torch.get_default_dtype()
