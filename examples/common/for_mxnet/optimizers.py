"""Optimizers that MXNet's last release lacks, or has in another form than the other frameworks."""

from __future__ import annotations

from typing import Any

import mxnet as mx


class _Moments(mx.optimizer.Optimizer):
    """Keeps the running means of gradients and of their squares. A subclass computes the step from them.

    A parameter with `wd_mult = 0` has no weight decay.
    """

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, **options: Any) -> None:
        super().__init__(**options)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def create_state(self, index: int, weight: Any) -> tuple[Any, Any]:  # noqa: ARG002  MXNet's signature
        """Return the two running means of a weight."""
        return mx.nd.zeros_like(weight), mx.nd.zeros_like(weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one weight, or each of a list."""
        if isinstance(index, (list, tuple)):
            for one in zip(index, weight, grad, state, strict=True):
                self.update(*one)
            return
        self._update_count(index)
        mean, square = state
        grad = grad * self.rescale_grad
        mean[:] = self.beta1 * mean + (1 - self.beta1) * grad
        square[:] = self.beta2 * square + (1 - self.beta2) * grad * grad
        step = self._index_update_count[index]
        direction = self.direction(mean / (1 - self.beta1**step), square, step)
        decay = self._get_wd(index)
        weight[:] = self.updated(weight, direction, self._get_lr(index), decay)

    def direction(self, mean: Any, square: Any, step: int) -> Any:
        """Return Adam's direction. `mean` is corrected for the bias of the first steps, `square` is not."""
        return mean / (mx.nd.sqrt(square / (1 - self.beta2**step)) + self.epsilon)

    def updated(self, weight: Any, direction: Any, rate: float, decay: float) -> Any:
        """Return the new weight."""
        return weight * (1 - rate * decay) - rate * direction


class AdamW(_Moments):
    """Adam with a weight decay of its own (arXiv 1711.05101), as `torch.optim.AdamW`."""


class RAdam(_Moments):
    """Adam that starts with steps of momentum alone, until its second moments are reliable (arXiv 1908.03265)."""

    def direction(self, mean: Any, square: Any, step: int) -> Any:
        """Return the direction, as `torch.optim.RAdam` does."""
        fading = self.beta2**step
        longest = 2 / (1 - self.beta2) - 1
        length = longest - 2 * step * fading / (1 - fading)
        # Below a length of 5 the variance of the second moments has no bound.
        if length <= 5:
            return mean
        scale = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        return mean * (scale * (1 - fading)) ** 0.5 / (mx.nd.sqrt(square) + self.epsilon)


class LAMB(_Moments):
    """Adam with steps in proportion to the weights of each layer (arXiv 1904.00962, algorithm 2).

    Weights without weight decay, which are biases and normalisations, get Adam's step.
    """

    def __init__(self, epsilon: float = 1e-6, **options: Any) -> None:
        super().__init__(epsilon=epsilon, **options)

    def updated(self, weight: Any, direction: Any, rate: float, decay: float) -> Any:
        """Return the new weight."""
        step = direction + decay * weight
        if decay:
            sizes = [float(mx.nd.norm(one).asscalar()) for one in (weight, step)]
            rate *= sizes[0] / sizes[1] if all(sizes) else 1.0
        return weight - rate * step


class LARS(mx.optimizer.Optimizer):
    """Momentum with steps in proportion to the weights of each layer (arXiv 1708.03888, algorithm 1).

    Biases and normalisations get plain steps of momentum. MXNet's own class knows them by names that Gluon's trainer
    does not give it.
    """

    def __init__(self, momentum: float = 0.9, trust: float = 0.001, **options: Any) -> None:
        super().__init__(**options)
        self.momentum, self.trust = momentum, trust

    def create_state(self, index: int, weight: Any) -> Any:  # noqa: ARG002  MXNet's signature
        """Return the velocity of a weight."""
        return mx.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """Update one weight."""
        self._update_count(index)
        rate, decay, grad = self._get_lr(index), self._get_wd(index), grad * self.rescale_grad
        if len(weight.shape) > 1:
            size, slope = (float(mx.nd.norm(values).asscalar()) for values in (weight, grad))
            rate *= self.trust * size / (slope + decay * size) if size and slope else 1.0
        state[:] = self.momentum * state + rate * (grad + decay * weight)
        weight[:] -= state
