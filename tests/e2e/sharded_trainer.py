"""Hugging Face's Trainer and an accelerate script under the keys of version 2, next to the same steps in plain torch.

It runs as a job's script, and as four processes that try one layout after the other (`LAYOUTS`). Each layout ends in a
line of JSON with the largest differences from one process.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEPS, BATCH, RATE = 4, 8, 1e-2
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def model(seed: int = 0, family: str = "llama") -> torch.nn.Module:
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": 32, "max_position_embeddings": 16}
    if family == "bert":
        # Its embeddings are a layer of their own, the head is tied to them, and two modules have the head's bias.
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForMaskedLM(BertConfig(**sizes, **no_dropout)).double()
    tied = family == "tied llama"
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, tie_word_embeddings=tied, **sizes)).double()


def rows() -> list[dict[str, torch.Tensor]]:
    numbers = torch.randint(0, 32, (STEPS * BATCH, 16), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in numbers]


def batches() -> list[torch.Tensor]:
    return list(torch.stack([row["input_ids"] for row in rows()]).split(BATCH))


def alone(family: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return the losses and the weights of one process, without any library."""
    plain = model(family=family)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE, weight_decay=0.0)
    losses = []
    for batch in batches():
        loss = plain(input_ids=batch, labels=batch).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, plain.state_dict()


def trained(
    mesh_batches: int, folder: str, resume: str | None = None, family: str = "llama", **settings: Any
) -> tuple[list[float], Any]:
    """Return the losses and the trainer after all steps, with a checkpoint at half of them."""
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return SequentialSampler(self.train_dataset)

    options = {"save_steps": STEPS // 2, "lr_scheduler_type": "constant", "report_to": [], "disable_tqdm": True}
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH // mesh_batches,
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=RATE,
        # The rounding of the logged losses would hide differences; norms above 1 would be clipped.
        max_grad_norm=0.0,
        use_cpu=True,
        **options,
        **settings,
    )
    # Ranks start from different values, as a script without a seed does: rank 0's count.
    trainer = InOrder(model(RANK, family), arguments, train_dataset=rows())
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], trainer


def looped(mesh_batches: int) -> tuple[list[float], Any, Any]:
    """Return the losses of a plain accelerate script, its accelerator and its model."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    ours = model(seed=RANK)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=RATE, weight_decay=0.0)
    loader = torch.utils.data.DataLoader(rows(), batch_size=BATCH // mesh_batches)
    ours, optimizer, loader = accelerator.prepare(ours, optimizer, loader)
    losses = []
    for batch in loader:
        loss = ours(**batch).loss
        accelerator.backward(loss)
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, accelerator, ours


def difference(losses: list[float], weights: dict[str, torch.Tensor], family: str) -> dict[str, float]:
    expected, expected_weights = alone(family)
    return {
        "losses": max(abs(one - other) for one, other in zip(losses, expected, strict=True)),
        "weights": max((weights[name] - value).abs().max().item() for name, value in expected_weights.items()),
    }


def report(name: str, losses: list[float], accelerator: Any, prepared: Any, family: str = "llama") -> None:
    weights = accelerator.get_state_dict(prepared)
    sharded = sum(parameter.to_local().numel() for parameter in prepared.parameters())
    if RANK == 0:
        whole = sum(parameter.numel() for parameter in prepared.parameters())
        line = {"layout": name, "share": sharded / whole, **difference(losses, weights, family)}
        print("RESULT " + json.dumps(line), flush=True)


def main(name: str, mesh_batches: int) -> None:
    shared = [tempfile.mkdtemp() if RANK == 0 else ""]
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dist.broadcast_object_list(shared)
    losses, trainer = trained(mesh_batches, shared[0])
    report(f"{name}: Trainer", losses, trainer.accelerator, trainer.model)
    losses, trainer = trained(mesh_batches, shared[0], f"{shared[0]}/checkpoint-{STEPS // 2}")
    report(f"{name}: Trainer resumed", losses, trainer.accelerator, trainer.model)
    reset()
    if mesh_batches == 2:
        for family in ("tied llama", "bert"):
            # Each rank counts its own tokens only.
            settings = {"average_tokens_across_devices": False, "family": family}
            losses, trainer = trained(mesh_batches, shared[0], **settings)
            report(f"{name}: {family}", losses, trainer.accelerator, trainer.model, family)
            trainer.save_model(f"{shared[0]}/ours")
            if RANK == 0:
                model(family=family).save_pretrained(f"{shared[0]}/plain")
                ours, plain = (
                    (Path(shared[0]) / name / "model.safetensors").stat().st_size for name in ("ours", "plain")
                )
                print("RESULT " + json.dumps({"layout": f"{name}: {family}, bytes", "more": ours - plain}), flush=True)
            reset()
    losses, accelerator, prepared = looped(mesh_batches)
    report(f"{name}: accelerate", losses, accelerator, prepared)
    reset()


def reset() -> None:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()


if __name__ == "__main__":
    for layout in json.loads(os.environ.get("LAYOUTS", '[["job", 2, {}]]')):
        os.environ.update(layout[2])
        main(layout[0], layout[1])
    dist.destroy_process_group()
