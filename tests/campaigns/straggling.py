"""The scripts of the campaign `stragglers`: plain training scripts, and what is planted in one of their ranks."""

# Reads a batch as slowly as planted. `FLAG` is the file that plants it, `GROUPS` control groups for the slow rank.
PLANT = """
import mmap, os, sys, time, torch

RANK, PLANT, ODD = int(os.environ["RANK"]), os.environ["PLANT"], 1
buffer = mmap.mmap(-1, 1 << 20)
hoard = None

def work(times):
    for _ in range(times):
        torch.ones(256, 256) @ torch.ones(256, 256)

def planted():
    return RANK == ODD and os.path.exists(os.environ["FLAG"])

def enter():
    for group in filter(None, os.environ["GROUPS"].split(",")):
        with open(group + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

if PLANT == "busy":
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[RANK % 2]})

def batch():
    global hoard, entered
    if planted() and not entered:
        entered = True
        enter()
    work(WORK * 6 if PLANT == "work" and planted() else WORK)
    if PLANT in ("sleep", "seldom") and planted():
        time.sleep(0.3)
    if PLANT == "disk":
        file = os.open(os.environ["DATA"], os.O_RDONLY | os.O_DIRECT)
        os.readv(file, [buffer])
        os.close(file)
    if PLANT == "swap" and planted():
        hoard = torch.ones(80 << 20, dtype=torch.uint8) if hoard is None else hoard.add_(1)

def seldom(step, save):
    # Rank 0 alone evaluates and saves, for as long as four steps take.
    if PLANT == "seldom" and RANK == 0 and step % 10 == 9:
        work(4 * WORK)
        save()

WORK, entered = 40, False
"""

DDP = """
import os, torch
import torch.distributed as dist
from plant import batch, seldom

dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100_000):
    batch()
    optimizer.zero_grad()
    model(torch.ones(32, 128)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    seldom(step, lambda: torch.save(model.module.state_dict(), os.environ["SM_MODEL_DIR"] + "/model.pt"))
"""

FSDP2 = """
import torch
import torch.distributed as dist
from plant import batch, seldom
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(4)])
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100_000):
    batch()
    optimizer.zero_grad()
    loss = model(torch.ones(32, 128)).sum()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    seldom(step, lambda: None)
"""

TRAINER = """
import os, torch
from plant import batch, seldom
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class Rows(torch.utils.data.Dataset):
    read = 0

    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        self.read += 1
        if self.read % 4 == 0:
            batch()
        return {"input_ids": torch.full((8,), number % 32), "labels": torch.full((8,), number % 32)}

class Seldom(TrainerCallback):
    def on_step_end(self, arguments, state, control, model=None, **_):
        seldom(state.global_step, lambda: torch.save(model.state_dict(), arguments.output_dir + "/model.pt"))

config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    os.environ["SM_MODEL_DIR"],
    max_steps=100_000,
    per_device_train_batch_size=4,
    logging_steps=10,
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Rows(), callbacks=[Seldom()]).train()
"""

SCRIPTS = {"ddp": DDP, "fsdp2": FSDP2, "trainer": TRAINER}
# What is planted, and words of the cause that must be named.
CAUSES = {
    "sleep": "uses no CPU",
    "work": "computes more",
    "busy": "other processes use its cores",
    "limit": "control group limits its CPU time",
    "disk": "waits for a disk",
    "swap": "back from swap",
}
# Where each is planted: every script has at least two.
PLANTED = (
    ("ddp", "sleep"),
    ("ddp", "busy"),
    ("fsdp2", "limit"),
    ("fsdp2", "work"),
    ("trainer", "disk"),
    ("trainer", "sleep"),
)
