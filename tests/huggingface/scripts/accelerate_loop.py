"""Train with a loop of one's own and Hugging Face's accelerate: no Trainer, no configuration file."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", type=Path)
folder = parser.parse_known_args()[0].output_dir
set_seed(7)
accelerator = Accelerator()
generator = torch.Generator().manual_seed(3)
rows = TensorDataset(torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator))
batch = 16 // accelerator.num_processes
loader = DataLoader(rows, batch_size=batch)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 8)
# Not the scheduler: accelerate would advance it once a process, which is another schedule for each number of them.
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for _ in range(2):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
# On every rank: a sharded model is gathered.
weights = accelerator.get_state_dict(model)
if accelerator.is_main_process:
    weights = {name: value.tolist() for name, value in weights.items()}
    result = {"losses": losses, "ranks": accelerator.num_processes, "weights": weights}
    (folder / "loop.json").write_text(json.dumps(result))
