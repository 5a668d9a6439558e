"""The scripts of the campaign `stragglers`: plain training scripts, and what is planted in one of their ranks."""

# Reads a batch as slowly as planted. `FLAG` is the file that plants it, `GROUPS` control groups for the slow rank.
PLANT = """
import mmap, os, sys, time
import numpy as np

# Where mpirun starts the ranks, each host has one.
RANK, PLANT, ODD = int(os.environ["SM_CURRENT_HOST"][5:]) - 1, os.environ["PLANT"], 1
buffer = mmap.mmap(-1, 1 << 20)
hoard = None

def work(times):
    for _ in range(times):
        np.ones((256, 256), np.float32) @ np.ones((256, 256), np.float32)

def planted():
    return RANK == ODD and os.path.exists(os.environ["FLAG"])

def enter():
    for group in filter(None, os.environ["GROUPS"].split(",")):
        with open(group + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    if PLANT == "busy":
        pin(sorted(os.sched_getaffinity(0))[1])

def pin(core):
    # All threads of this rank: its libraries have started some.
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})

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
        hoard = np.ones(80 << 20, np.uint8) if hoard is None else hoard + 1

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

SMP = """
import smdistributed.modelparallel.torch as smp
import torch
from plant import batch, seldom

smp.init()
torch.manual_seed(1)
model = smp.DistributedModel(torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(8)]))
optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))
# The odd rank is slow in its stage where that has another rank, else outside of the step.
replicas = smp.dp_size() > 1

def work(*_):
    batch()

if replicas:
    for layer in (model.module[0], model.module[7]):
        layer.register_forward_pre_hook(work)

@smp.step
def train(model, inputs):
    loss = model(inputs).sum()
    model.backward(loss)
    return loss

for step in range(100_000):
    if not replicas:
        batch()
    optimizer.zero_grad()
    train(model, torch.ones(32, 128))
    optimizer.step()
    seldom(step, lambda: None)
"""

KERAS = """
import tensorflow as tf
from herringbone_parallel.tensorflow.data_parallel import api as sdp
from plant import batch, seldom

sdp.init()
tf.keras.utils.set_random_seed(1)
model = tf.keras.Sequential([tf.keras.Input((128,)), *[tf.keras.layers.Dense(128) for _ in range(4)]])
optimizer = tf.keras.optimizers.Adam()

@tf.function
def train(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs))
    tape = sdp.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

for step in range(100_000):
    batch()
    train(tf.ones((32, 128)))
    seldom(step, lambda: None)
"""

GLUON = """
import mxnet as mx
from mxnet import autograd, gluon
import herringbone_parallel.mxnet.api as hvd
from plant import batch, seldom

hvd.init()
net = gluon.nn.HybridSequential()
net.add(*[gluon.nn.Dense(128, in_units=128) for _ in range(4)])
net.initialize(mx.init.Xavier())
trainer = hvd.DistributedTrainer(net.collect_params(), "adam")
for step in range(100_000):
    batch()
    with autograd.record():
        loss = net(mx.nd.ones((32, 128))).sum()
    loss.backward()
    trainer.step(32)
    seldom(step, lambda: None)
"""


def _pipelined(partitions):
    parameters = {"partitions": partitions, "microbatches": 2, "ddp": True}
    return {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}} | MPI


MPI = {"mpi": {"enabled": True, "processes_per_host": 1}}
TORCH = {"torch_distributed": {"enabled": True}}
SCRIPTS = {"ddp": DDP, "fsdp2": FSDP2, "trainer": TRAINER}
# Scripts of frameworks and libraries that count their steps: the Python that has them, hosts and distribution.
OTHERS = {
    "smp": (SMP, 2, _pipelined(2)),
    "smp4": (SMP, 4, _pipelined(2)),
    "keras": (KERAS, 3, {"smdistributed": {"dataparallel": {"enabled": True}}}),
    "gluon": (GLUON, 3, MPI),
}
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
