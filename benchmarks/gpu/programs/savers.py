"""Compare what the libraries do with a model to save memory or time, on one device: precisions, or activations.

Usage: python savers.py --compare precision|offload [--device cuda|cpu] [--tiny]

Each way trains the same transformer from the same weights on the same tokens, one after the other in this process. The
last line is JSON: milliseconds of a step, peak memory, and the last loss. Ways of `offload` must have the loss of plain
training, because they compute the same; those of `precision` must be near it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from common import finish, free_port, options_of
from torch import nn
from torch.nn import functional

# The relative difference of the last loss to that of the first way.
TOLERANCE = {"offload": 1e-3, "precision": 0.05}
_WORDS = 1000


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and of a batch, and the steps, of which the first two are not timed."""

    layers: int
    width: int
    length: int
    batch: int
    steps: int


FULL, TINY = Sizes(24, 1024, 1024, 8, 12), Sizes(2, 32, 16, 4, 4)
_WARM_UP = 2

Step = Callable[[torch.Tensor], torch.Tensor]


class Model(nn.Module):
    """A causal transformer whose blocks are in a list, so that the libraries find them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, sizes.width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                sizes.width, max(1, sizes.width // 64), 4 * sizes.width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(sizes.layers)
        )
        self.head = nn.Linear(sizes.width, _WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=states.device, dtype=states.dtype)
        for block in self.blocks:
            states = block(states, src_mask=mask, is_causal=True)
        return self.head(states)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss of predicting each token from those before it."""
    return functional.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


def plain(model: nn.Module, device: torch.device, precision: str = "fp32") -> Step:
    """Return a step of plain torch; 16 bits are those of autocast."""
    from herringbone_parallel.torch.recipes.api import Precision

    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    arithmetic = Precision(precision, device)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        with arithmetic.autocast():
            loss = loss_of(model, tokens)
        arithmetic.backward(loss)
        arithmetic.step(optimizer)
        optimizer.zero_grad()
        return loss.detach()

    return step


def sharded(model: nn.Module, _: torch.device, **options: Any) -> Step:
    """Return a step of `torch.sagemaker`; the parameters of the job are in the environment."""
    from herringbone_parallel.torch.sharding import api as tsm

    tsm.init()
    shared = tsm.shard(model, **options)
    optimizer = torch.optim.AdamW(shared.parameters(), lr=1e-4)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        loss = loss_of(shared, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def smp(model: nn.Module, device: torch.device, *, checkpoint: bool = False) -> Step:
    """Return a step of version 1's `smp`; the parameters of the job are in the environment."""
    import herringbone_parallel.torch.model_parallel.api as library

    library.init()
    blocks = list(model.blocks)  # type: ignore[arg-type]
    distributed = library.DistributedModel(model)
    optimizer = library.DistributedOptimizer(torch.optim.AdamW(distributed.parameters(), lr=1e-4))
    for block in blocks if checkpoint else []:
        library.set_activation_checkpointing(block)

    @library.step
    def train(tokens: torch.Tensor) -> torch.Tensor:
        loss = loss_of(distributed, tokens)
        distributed.backward(loss)
        return loss

    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = train(tokens.to(device)).reduce_mean()
        optimizer.step()
        return loss.detach()

    return step


@dataclass(frozen=True)
class Way:
    """One way to train: how to make a step, and the job's `modelparallel` parameters."""

    make: Callable[..., Step]
    parameters: dict[str, Any]
    options: dict[str, Any]


# One rank: version 1's pipeline has one part, and version 2 has one shard.
_ALONE: dict[str, Any] = {"partitions": 1, "microbatches": 2}
_SHARDED: dict[str, Any] = {"hybrid_shard_degree": 1}
_OFFLOADED: dict[str, Any] = {"sm_activation_offloading": True, "activation_loading_horizon": 2}
WAYS: dict[str, dict[str, Way]] = {
    "precision": {
        "fp32": Way(plain, {}, {}),
        "autocast bf16": Way(plain, {}, {"precision": "bf16"}),
        "shard bf16": Way(sharded, _SHARDED, {"mixed_precision": torch.bfloat16}),
        "smp bf16": Way(smp, {**_ALONE, "bf16": True}, {}),
    },
    "offload": {
        "plain": Way(plain, {}, {}),
        "shard checkpointed": Way(sharded, _SHARDED, {"checkpoint_activations": True}),
        "shard offloaded": Way(sharded, {**_SHARDED, **_OFFLOADED}, {}),
        "smp checkpointed": Way(smp, _ALONE, {"checkpoint": True}),
        "smp offloaded": Way(smp, {**_ALONE, "offload_activations": True}, {"checkpoint": True}),
    },
}


def measure(way: Way, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Train in one way, and return its figures."""
    os.environ["SM_HP_MP_PARAMETERS"] = json.dumps(way.parameters)
    # A store of an earlier way may still have its port.
    os.environ["MASTER_PORT"] = str(free_port())
    torch.manual_seed(0)
    step = way.make(Model(sizes), device, **way.options)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, _WORDS, (sizes.batch, sizes.length + 1), generator=generator).to(device)
    seconds, loss = [], torch.zeros(())
    for number in range(sizes.steps):
        if number == _WARM_UP and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        loss = step(tokens)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {
        "step_ms": round(1000 * statistics.median(seconds[_WARM_UP:]), 3),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 3) if device.type == "cuda" else None,
        "loss": float(loss),
    }


def leave() -> None:
    """Leave the libraries, so that the next way begins as a process would, and free what the last one held."""
    from herringbone_parallel.torch.model_parallel import state as version_1
    from herringbone_parallel.torch.sharding import state as version_2

    version_1.shutdown()
    version_2.shutdown()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def wrong(results: dict[str, dict[str, Any]], tolerance: float) -> list[str]:
    """Return the ways whose last loss is not that of the first way, in words.

    >>> wrong({"plain": {"loss": 2.0}, "a": {"loss": 2.01}, "b": {"loss": 2.3}, "c": {"loss": float("nan")}}, 0.01)
    ['b: the last loss is 2.3, and that of plain is 2.0', 'c: the last loss is nan, and that of plain is 2.0']
    """
    first, *others = results
    base = results[first]["loss"]
    return [
        f"{name}: the last loss is {results[name]['loss']}, and that of {first} is {base}"
        for name in others
        if not abs(results[name]["loss"] / base - 1) <= tolerance
    ]


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Train in all ways, and return their figures. A way that raises is named in `failed`."""
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    sizes = TINY if options.tiny else FULL
    results: dict[str, dict[str, Any]] = {}
    failed = []
    for name, way in WAYS[options.compare].items():
        try:
            results[name] = measure(way, sizes, device)
            print(name, results[name], flush=True)
        except Exception as error:  # noqa: BLE001  one way must not cost the figures of the others
            failed.append(f"{name}: {type(error).__name__}: {error}")
        leave()
    if results:
        failed += wrong(results, TOLERANCE[options.compare])
    return {**results, **({"failed": failed} if failed else {})}


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--compare", choices=sorted(WAYS), required=True)
    options = parser.parse_args()
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo"
    )
    if options.device == "cpu":
        torch.set_num_threads(1)
    return finish(compare(options))


if __name__ == "__main__":
    sys.exit(main())
