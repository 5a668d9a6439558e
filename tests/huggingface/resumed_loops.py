"""Loops as users write them, which are stopped in the middle of an epoch and go on; each knows nothing of Herringbone.

    trainer(folder, log, **options)       Hugging Face's Trainer, `resume_from_checkpoint=True`
    peft(folder, log, **options)          the same with an adapter of PEFT's
    accelerate(folder, log, **options)    a loop of accelerate's own: save_state, load_state, skip_first_batches
    lightning(folder, log, **options)     Lightning's Trainer, `fit(ckpt_path=...)`

`folder` is that of checkpoints. Each step appends a line of JSON to `log`, a file of each rank: epoch, step, samples,
loss; the end appends the digest of the weights. With `stop`, the loop ends after that step, as if it had been killed;
with `cut`, it ends in the middle of that step's save.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

SAMPLES, WIDTH, EPOCHS = 37, 4, 2


class Augmented(torch.utils.data.Dataset):
    """Samples that draw from all three sources of random numbers when they are read."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= SAMPLES:
            raise IndexError(index)
        noise = random.random() + float(numpy.random.rand()) + torch.rand(()).item()
        inputs = torch.arange(WIDTH) * index / SAMPLES + noise * 0.1
        return {"input_ids": inputs, "labels": inputs.sum(), "sample": torch.tensor(index)}


class Net(nn.Module):
    """A net with dropout, which returns its loss as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Linear(8, 1)

    def forward(self, input_ids: Any, labels: Any, sample: Any = None) -> dict[str, torch.Tensor]:
        outputs = self.last(self.drop(torch.tanh(self.first(input_ids)))).squeeze(1)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


class StoppedError(Exception):
    """Ends a loop after the step at which it is to stop."""


class Log:
    """The lines of one rank."""

    def __init__(self, path: str | os.PathLike[str], stop: int, cut: int = 0) -> None:
        self.path, self.stop, self.cut = Path(f"{path}-{os.environ.get('RANK', '0')}"), stop, cut
        self.samples: list[int] = []
        self.loss = 0.0

    def step(self, epoch: int, step: int) -> None:
        """Write a step down."""
        self._write([epoch, step, self.samples, self.loss])
        self.samples = []

    def cut_save(self, step: int, scheduler: Any) -> None:
        """Let the save of this step fail where it reaches the scheduler, behind the model and the optimizer."""
        if step == self.cut:
            scheduler.state_dict = lambda: 1 / 0

    def end(self, model: nn.Module) -> None:
        """Write the digest of the weights."""
        content = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
        self._write(["weights", hashlib.sha256(content).hexdigest()])

    def _write(self, line: list[Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def trainer(folder: str, log: str, stop: int = 0, cut: int = 0, net: Any = None, **options: Any) -> None:
    """Train with Hugging Face's Trainer, with an evaluation and a checkpoint every second step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    lines = Log(log, stop)

    class Logged(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            result = super().compute_loss(model, inputs, *args, **kwargs)
            if model.training:
                lines.samples += inputs["sample"].tolist()
                lines.loss = (result[0] if isinstance(result, tuple) else result).item()
            return result

        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            if self.state.global_step == cut:
                raise StoppedError
            super()._save_optimizer_and_scheduler(output_dir)

    class Steps(TrainerCallback):
        def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            lines.step(int(state.epoch - 1e-9), state.global_step)

        def on_save(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == lines.stop:
                control.should_training_stop = True

    set_seed(7)
    settings: dict[str, Any] = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "label_names": ["labels"],
        **options,
    }
    with_it = Logged(
        model=net or Net(),
        args=TrainingArguments(folder, **settings),
        train_dataset=Augmented(),
        eval_dataset=Augmented(),
        callbacks=[Steps()],
    )
    has_one = os.path.isdir(folder) and get_last_checkpoint(folder) is not None
    with_it.train(resume_from_checkpoint=has_one)
    if not stop:
        lines.end(with_it.model)


def peft(folder: str, log: str, **options: Any) -> None:
    """Train an adapter of PEFT's with Hugging Face's Trainer."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)
    net = get_peft_model(Net(), LoraConfig(r=2, target_modules=["first"], modules_to_save=["last"], lora_dropout=0.2))
    trainer(folder, log, net=net, **options)


def accelerate(
    folder: str, log: str, stop: int = 0, skips: bool = True, workers: int = 0, batch_size: int = 4, **options: Any
) -> None:
    """Train with a loop of accelerate's, with accumulation, an evaluation and a checkpoint every second step."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    lines = Log(log, stop, options.pop("cut", 0))
    set_seed(7)
    splits = DataLoaderConfiguration(split_batches=options.pop("split_batches", False))
    accelerator = Accelerator(cpu=True, dataloader_config=splits, **options)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Augmented()
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers)
    test = torch.utils.data.DataLoader(data, batch_size=batch_size)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 30)
    model, optimizer, loader, test, scheduler = accelerator.prepare(model, optimizer, loader, test, scheduler)
    saved = sorted((int(path.name[5:]), path) for path in Path(folder).glob("step_*"))
    step = batches = first = taken = 0
    if saved:
        accelerator.load_state(str(saved[-1][1]))
        at = json.loads((saved[-1][1] / "mine.json").read_text())
        step, first, taken = at["step"], at["epoch"], at["batches"]
    for epoch in range(first, EPOCHS):
        model.train()
        skipped = taken if epoch == first else 0
        active = accelerator.skip_first_batches(loader, skipped) if skipped and skips else loader
        batches = skipped if skips else 0
        for batch in active:
            batches += 1
            if batches <= skipped and not skips:
                continue
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                lines.samples += batch["sample"].tolist()
                lines.loss = loss.item()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            lines.step(epoch, step)
            if step % 2 == 0:
                path = Path(folder, f"step_{step}")
                lines.cut_save(step, scheduler)
                accelerator.save_state(str(path))
                if accelerator.is_main_process:
                    at = {"step": step, "epoch": epoch, "batches": batches}
                    (path / "mine.json").write_text(json.dumps(at))
                accelerator.wait_for_everyone()
            if step == stop:
                return
            if step % 5 == 0:
                for other in test:
                    with torch.no_grad():
                        model(**other)
    lines.end(accelerator.unwrap_model(model))


def lightning(
    folder: str, log: str, stop: int = 0, workers: int = 0, batch_size: int = 4, validate: bool = True, **options: Any
) -> None:
    """Train with Lightning's Trainer, with a checkpoint every second step."""
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint

    lines = Log(log, stop)

    class Trained(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any) -> Any:
            loss = self.net(**batch)["loss"]
            lines.samples += batch["sample"].tolist()
            lines.loss = loss.item()
            return loss

        def validation_step(self, batch: Any) -> None:
            self.log("val_loss", self.net(**batch)["loss"])

        def on_train_batch_end(self, *_: Any) -> None:
            lines.step(self.current_epoch, self.global_step)
            if stop and self.global_step == stop:
                raise StoppedError

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    seed_everything(7, verbose=False)
    data = Augmented()
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=workers)
    test = torch.utils.data.DataLoader(data, batch_size=batch_size)
    saves = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=2, save_top_k=-1, save_last=True)
    with_it = Trainer(
        max_epochs=EPOCHS,
        callbacks=[saves],
        logger=False,
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"val_check_interval": 3} if validate else {"limit_val_batches": 0}),
        **options,
    )
    last = Path(folder, "last.ckpt")
    model = Trained()
    with contextlib.suppress(StoppedError):
        with_it.fit(model, loader, test, ckpt_path=str(last) if last.exists() else None)
    if not stop:
        lines.end(model)
