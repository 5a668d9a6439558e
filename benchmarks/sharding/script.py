"""Train a small transformer on random tokens, sharded in one of three ways, and print the seconds of each step.

VARIANT=plain        torch's `fully_shard`, and no line of Herringbone
VARIANT=accelerate   an accelerate script, and no line of Herringbone
VARIANT=transform    two models in turn: one sharded by `fully_shard` as above, one by `torch.sagemaker`
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

VARIANT = os.environ["VARIANT"]
STEPS, WARM_UP = int(os.environ.get("STEPS", "30")), 5
WIDTH, LAYERS, HEADS, LENGTH, BATCH, WORDS = 256, 4, 4, 64, 4, 1000


class Model(nn.Module):
    # accelerate shards these one by one, as it does with models of transformers.
    _no_split_modules = ("TransformerEncoderLayer",)

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), words.flatten())


def fully_sharded(model: Model, device: torch.device) -> Model:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model.to(device)
    for unit in (*model.layers, model):
        fully_shard(unit, mesh=mesh)
    return model


def stepper(
    model: nn.Module, batch: torch.Tensor, backward: Callable[[Any], Any], optimizer: Any
) -> Callable[[], None]:
    def step() -> None:
        backward(model(batch))
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None], device: torch.device) -> float:
    dist.barrier()
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def steppers(device: torch.device) -> dict[str, Callable[[], None]]:
    """Return a step of each model that the variant trains."""
    torch.manual_seed(0)
    batch = torch.randint(0, WORDS, (BATCH, LENGTH), device=device)
    if VARIANT == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator()
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer = accelerator.prepare(model, optimizer)
        return {"accelerate": stepper(model, batch, accelerator.backward, optimizer)}
    model = fully_sharded(Model(), device)
    plain = stepper(model, batch, torch.Tensor.backward, torch.optim.AdamW(model.parameters()))
    if VARIANT == "plain":
        return {"plain": plain}
    from herringbone_parallel.torch.sharding import api as sagemaker

    sagemaker.init()
    sharded = sagemaker.shard(Model())
    return {
        "plain": plain,
        "transform": stepper(sharded, batch, torch.Tensor.backward, torch.optim.AdamW(sharded.parameters())),
    }


def main() -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if VARIANT != "accelerate":
        dist.init_process_group()
    steps = steppers(device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(STEPS + WARM_UP):
        # Each model is first in turn, because the second one finds a warmer cache.
        for name in list(steps)[:: 1 if number % 2 else -1]:
            taken = seconds(steps[name], device)
            if number >= WARM_UP:
                times[name].append(taken)
    if dist.get_rank() == 0:
        print("TIMES " + json.dumps(times), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
