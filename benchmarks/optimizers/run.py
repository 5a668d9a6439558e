"""Time a step of our LARS and LAMB, and compare with a loop over the layers, and with torch's fused AdamW and RAdam.

Usage: python benchmarks/optimizers/run.py [--model resnet50|bert-large] [--device cpu|cuda] [--repeats 7] [--threads 1]

The benchmark has parameters and random gradients only; no model runs. The last line is JSON: ratios of the medians, and
the number of operators (on CUDA: kernels) that a step launches, as counted by torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import shapes
import torch
from torch.profiler import ProfilerActivity, profile

from herringbone_parallel.torch.recipes.api import LAMB, LARS


class Loop:
    """An optimizer that updates layer by layer, with as few torch operators as possible."""

    def __init__(self, weights: list[torch.Tensor], kind: str) -> None:
        self._kind = kind
        self._layers = [(weight, torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self._steps += 1
        for weight, first, second in self._layers:
            assert weight.grad is not None
            if self._kind == "lars":
                self._lars(weight, weight.grad, first)
            else:
                self._lamb(weight, weight.grad, first, second)

    def _lars(self, weight: torch.Tensor, gradient: torch.Tensor, velocity: torch.Tensor) -> None:
        of_weight, of_gradient = weight.norm(), gradient.norm()
        ratio = 0.001 * of_weight / (of_gradient + 1e-4 * of_weight)
        ratio = torch.where((of_weight > 0) & (of_gradient > 0), ratio, 1.0)
        velocity.mul_(0.9).add_(gradient.add(weight, alpha=1e-4).mul_(ratio), alpha=0.1)
        weight.sub_(velocity)

    def _lamb(self, weight: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> None:
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        update = square.div(1 - 0.999**self._steps).sqrt_().add_(1e-6)
        update = mean.div(1 - 0.9**self._steps).div_(update).add_(weight, alpha=0.01)
        of_weight, of_update = weight.norm(), update.norm()
        ratio = torch.where((of_weight > 0) & (of_update > 0), of_weight / of_update, 1.0)
        weight.sub_(update.mul_(0.001 * ratio))


def seconds(step: Callable[[], object], device: str) -> float:
    """Time one step. On a CPU, return the process's CPU time, which does not count other work on the machine."""
    if device == "cuda":
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - begun
    begun = time.process_time()
    step()
    return time.process_time() - begun


def launches(step: Callable[[], object], device: str) -> int:
    """Count the launches of one step: kernels on CUDA, operators called from Python on a CPU."""
    if device == "cuda":
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            step()
            torch.cuda.synchronize()
        # Newer kernels are launched by cudaLaunchKernelExC, and Triton's by cuLaunchKernel.
        calls = ("cudaLaunchKernel", "cuLaunchKernel")
        return sum(event.count for event in trace.key_averages() if event.key.startswith(calls))
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        step()
    roots = [event for event in trace.events() if event.cpu_parent is None or event.cpu_parent.name.startswith("Opt")]
    return sum(event.name.startswith("aten::") for event in roots)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads on a CPU")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    weights = []
    for shape in shapes.MODELS[arguments.model]():
        weight = torch.nn.Parameter(0.05 * torch.randn(shape, device=arguments.device))
        weight.grad = 0.01 * torch.randn(shape, device=arguments.device)
        weights.append(weight)
    makers: dict[str, Callable[[], Callable[[], object]]] = {
        "adamw": lambda: torch.optim.AdamW(weights, lr=1e-3, fused=True).step,
        "radam": lambda: torch.optim.RAdam(weights, lr=1e-3, decoupled_weight_decay=True, foreach=True).step,
        "lars_loop": lambda: Loop(weights, "lars").step,
        "lars": lambda: LARS(weights, lr=0.1, weight_decay=1e-4).step,
        "lamb_loop": lambda: Loop(weights, "lamb").step,
        "lamb": lambda: LAMB(weights, lr=0.001, weight_decay=0.01).step,
    }
    medians: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, make in makers.items():
        # One optimizer at a time, to hold only one optimizer's state in memory. The first step creates the state.
        step = make()
        step()
        medians[name] = statistics.median(seconds(step, arguments.device) for _ in range(arguments.repeats))
        counts[name] = launches(step, arguments.device)
        print(f"{name:<10} {1000 * medians[name]:8.1f} ms {counts[name]:6} launches", flush=True)
    ratios = {
        f"{name}_over_{other}": medians[name] / medians[against]
        for name in ("lars", "lamb")
        for other, against in (("loop", f"{name}_loop"), ("adamw", "adamw"))
    }
    ratios["radam_over_adamw"] = medians["radam"] / medians["adamw"]
    milliseconds = {name: round(1000 * median, 4) for name, median in medians.items()}
    result = {"model": arguments.model, "parameters": len(weights), **ratios, "ms": milliseconds, "launches": counts}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
