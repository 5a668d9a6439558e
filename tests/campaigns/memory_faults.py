"""Kill ranks and hosts of one job at random, and see from where it goes on: memory, a neighbour's memory, or the disk.

Usage: `.venv/bin/python -m tests.campaigns.memory_faults [--faults 100] [--seed N] [--short]` from the root of the
repository. The last line is JSON: the faults of each kind, the sources of the resumes, and what is wrong.

    rank    a rank is killed                                                    every host's own memory
    host    a host is lost: its rank, its supervisor and its holder are         its neighbour's memory
            killed, so each time the copy of another host is lost, too
    two     a host and the neighbour that holds its copy, at once               the disk
    save    a rank is killed in the middle of its write into memory             memory, a generation earlier

Sums go by parameter, so that their order is the same after a resume: the buckets of DDP change after its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from herringbone import PyTorch
from tests.waiting import wait_until

HOSTS = 3
KINDS = {"rank": "each host's part from its own memory", "host": "from a neighbour's memory", "two": "from disk"}

SCRIPT = """
import hashlib, json, os, signal, socket, struct, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from herringbone_parallel.torch.checkpoint import writing
from herringbone_parallel.torch.position.api import Training

FAULTS, MARKS = json.loads(Path(__file__).with_name("faults.json").read_text()), Path(os.environ["MARKS"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 300), torch.nn.Dropout(0.2), torch.nn.Linear(300, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(480, 16), torch.randn(480, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True))
training = Training(model=model, optimizer=optimizer, loader=loader)
training.resume()
dying = False


(MARKS / f"supervisor-{rank}").write_text(str(os.getppid()))


def holder(of):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(str(Path(os.environ["HERRINGBONE_CHECKPOINT_HOLDER"]).with_name(f"algo-{of + 1}.rank")))
        return struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def die(hosts=()):
    print("A FAULT OF THE CAMPAIGN", flush=True)
    time.sleep(0.05)
    # At once: the first of two deaths ends the attempt, before the other host could die by itself.
    pids = [*map(holder, hosts), *(int((MARKS / f"supervisor-{host}").read_text()) for host in hosts)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def write_summed(descriptor, data, original=writing._write_summed):
    # Behind the header: the file in memory is cut.
    if dying and "memfd" in os.readlink(f"/proc/self/fd/{descriptor}"):
        die()
    return original(descriptor, data)


writing._write_summed = write_summed
done = set()
while training.step < STEPS:
    loader.sampler.set_epoch(training.epoch)
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        optimizer.step()
        if training.step % 20 == 0:
            training.save()
        for number, (step, kind, host) in enumerate(FAULTS):
            mark = MARKS / f"{number}-{rank}"
            if training.step >= step and rank == host and not mark.exists():
                mark.touch()
                if kind == "save":
                    dying = True
                else:
                    die({"rank": (), "host": (host,), "two": (host, (host + 1) % size)}[kind])
        time.sleep(PAUSE)
        if training.step >= STEPS:
            break
if rank == 0:
    flat = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print("weights", hashlib.sha256(flat).hexdigest(), flush=True)
dist.destroy_process_group()
"""


def schedule(count: int, chance: random.Random) -> list[tuple[int, str, int]]:
    """Return the step, the kind and the host of each fault: a tenth of them two hosts, a fifth in a save."""
    kinds = ["two"] * max(count // 10, 1) + ["save"] * max(count // 5, 1) + ["host"] * max(count * 3 // 10, 1)
    kinds += ["rank"] * (count - len(kinds))
    chance.shuffle(kinds)
    step, faults = 20, []
    for kind in kinds:
        step += chance.randint(6, 12)
        faults.append((step, kind, chance.randrange(HOSTS)))
    return faults


def run(faults: list[tuple[int, str, int]], steps: int, folder: Path) -> tuple[str, list[str]]:
    """Run the job with these faults; return its status and the lines of its log."""
    (folder / "marks").mkdir(parents=True)
    os.environ["HERRINGBONE_HOME"] = str(folder / "home")
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT.replace("STEPS", str(steps)).replace("PAUSE", "0.01"))
    (code / "faults.json").write_text(json.dumps(faults))
    job = PyTorch(
        "train.py",
        source_dir=str(code),
        instance_type="local_process",
        instance_count=HOSTS,
        distribution={"torch_distributed": {"enabled": True}},
        max_retry_attempts=2 * len(faults) + 1,
        log_policies={"A FAULT OF THE CAMPAIGN": "restart"},
        checkpoint_memory=2,
        environment={"MARKS": str(folder / "marks"), "OMP_NUM_THREADS": "1"},
    ).fit(logs=False, wait=False)
    wait_until(lambda: job.status in ("Completed", "Failed", "Stopped"), seconds=300 + 20 * len(faults))
    return job.status, [line.text for line in job.logs()]


def judge(faults: list[tuple[int, str, int]], lines: list[str], whole: list[str]) -> tuple[dict[str, int], list[str]]:
    """Return how often the job went on from where, and what is wrong."""
    resumes = [line for line in lines if "resumes with" in line]
    wrong = []
    if weights(lines) != weights(whole):
        wrong.append(f"other weights: {weights(lines)}, undisturbed {weights(whole)}")
    if len(resumes) != len(faults):
        wrong.append(f"{len(faults)} faults and {len(resumes)} resumes")
    for (step, kind, host), line in zip(faults, resumes, strict=False):
        # The disk is as new as memory when the fault comes right behind a save on it.
        if KINDS.get(kind, "from memory") not in line and "from disk: memory has step" not in line:
            wrong.append(f"{kind} of host {host + 1} at step {step}: {line}")
    return Counter(source for line in resumes for source in KINDS.values() if source in line), wrong


def weights(lines: list[str]) -> list[str]:
    return [line for line in lines if "weights " in line]


def holders() -> list[str]:
    """Return the holders that run on this machine from this environment."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if "herringbone_entry.holder" in line and line.startswith(sys.prefix)]


def campaign(count: int, seed: int) -> dict[str, Any]:
    faults = schedule(count, random.Random(seed))
    steps = faults[-1][0] + 20
    before = len(holders())
    with tempfile.TemporaryDirectory(prefix="hbm-", ignore_cleanup_errors=True) as base:
        status, whole = run([], steps, Path(base, "whole"))
        assert status == "Completed", whole[-20:]
        status, lines = run(faults, steps, Path(base, "faults"))
    sources, wrong = judge(faults, lines, whole)
    if status != "Completed":
        wrong.append(f"the job is {status}: {lines[-10:]}")
    if len(left := holders()) > before:
        wrong.append(f"holders are left: {left}")
    return {"faults": Counter(kind for _, kind, _ in faults), "resumes": sources, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    result = campaign(5 if arguments.short else arguments.faults, arguments.seed)
    print(json.dumps(result))
    return int(bool(result["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
