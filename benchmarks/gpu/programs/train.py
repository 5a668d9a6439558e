"""Train a model of benchmarks/plan on random samples, and print samples a second, peak memory and the last loss.

Usage: python train.py --model bert-large --way plain|job|trainer [--size full] [--length 512] [--batch 16] ...

`job` is `plain` with DistributedDataParallel on `smddp`, as a rank of Herringbone. `trainer` is Hugging Face's Trainer.
On a device all compute in bf16 under autocast, with fused AdamW. The first `--warm-up` steps are not timed.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from cases import CASES, Case
from torch import nn
from torch.utils.data import DataLoader, Dataset

# Samples are made once: a GPU is faster than a generator of random numbers on a CPU.
_KEPT = 64


class Samples(Dataset[dict[str, Any]]):
    """A few random samples, again and again."""

    def __init__(self, case: Case, length: int, count: int) -> None:
        torch.manual_seed(0)
        self._samples = [case.sample(length) for _ in range(min(count, _KEPT))]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._samples[index % len(self._samples)]


class Clock:
    """The seconds of the steps after the warm-up, to the end of the device's work."""

    def __init__(self, device: torch.device, warm_up: int) -> None:
        self._device, self._warm_up, self._steps = device, warm_up, 0
        self._began = self.seconds = 0.0

    def step_ended(self) -> None:
        """Note the end of a step."""
        self._steps += 1
        if self._steps == self._warm_up:
            self._wait()
            self._began = time.perf_counter()

    def stop(self) -> int:
        """Note the end of the last step. Return the number of timed steps."""
        self._wait()
        self.seconds = time.perf_counter() - self._began
        return self._steps - self._warm_up

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["bert-large", "resnet50"], required=True)
    parser.add_argument("--way", choices=["plain", "job", "trainer"], default="plain")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


def loop(settings: argparse.Namespace, model: nn.Module, case: Case, data: Samples, clock: Clock) -> float:
    """Train in a plain loop, and return the last loss."""
    device = next(model.parameters()).device
    if settings.way == "job":
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  registers the backend

        torch.distributed.init_process_group("smddp")
        model = nn.parallel.DistributedDataParallel(model)
    on_device = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_device)
    loader = DataLoader(data, settings.batch, num_workers=settings.workers, pin_memory=on_device)
    loss = torch.zeros(())
    for batch in loader:
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=on_device):
            loss = case.loss(model, moved)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.step_ended()
    return loss.item()


def trainer(settings: argparse.Namespace, model: nn.Module, case: Case, data: Samples, clock: Clock) -> float:
    """Train in Hugging Face's Trainer, and return the last loss."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Steps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step_ended()

    losses: list[torch.Tensor] = []

    class LossTrainer(Trainer):
        def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            loss = case.loss(model, inputs)
            losses[:] = [loss.detach()]
            return (loss, None) if return_outputs else loss

    on_device = next(model.parameters()).device.type == "cuda"
    arguments = TrainingArguments(
        output_dir="unused-output",
        per_device_train_batch_size=settings.batch,
        max_steps=settings.warm_up + settings.steps,
        bf16=on_device,
        use_cpu=not on_device,
        optim="adamw_torch_fused" if on_device else "adamw_torch",
        learning_rate=1e-4,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        dataloader_num_workers=settings.workers,
        dataloader_pin_memory=on_device,
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    LossTrainer(model=model, args=arguments, train_dataset=data, callbacks=[Steps()]).train()
    return losses[0].item()


def main() -> None:
    settings = parse()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    case = CASES[settings.model]
    torch.manual_seed(0)
    model = case.make(settings.size).to(device).train()
    data = Samples(case, settings.length, settings.batch * (settings.warm_up + settings.steps))
    clock = Clock(device, settings.warm_up)
    train = trainer if settings.way == "trainer" else loop
    loss = train(settings, model, case, data, clock)
    steps = clock.stop()
    result = {
        "samples_per_s": settings.batch * steps / clock.seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "loss": loss,
    }
    print("RESULT " + json.dumps(result), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
