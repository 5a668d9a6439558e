"""Compare the speed of a training script: as a plain loop, as a job of Herringbone, and in Hugging Face's Trainer.

Usage: python throughput.py --model bert-large|resnet50 [--device cuda|cpu] [--tiny]

The three ways train the same model in the same precision on the same samples, one after the other, on one device. The
last line is JSON: samples a second and peak memory of each way, the ratio to the plain loop, and MFU: the part of the
device's peak in bf16 that the arithmetic of the model reaches. MFU is null for a device whose peak is not known.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.flops import BERT_LARGE, RESNET50, Encoder, ResNet, encoder_flops, mfu, resnet_flops
from common import ROOT, finish, options_of, own_home

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "train.py"
CASES = ROOT / "benchmarks" / "plan" / "cases.py"
# Those of benchmarks/plan/cases.py.
SMALL_BERT, SMALL_RESNET = Encoder(4, 128, 512, 1000), ResNet(16, (1, 1, 1, 1))
_LAST = 600


def settings_of(model: str, *, tiny: bool) -> dict[str, Any]:
    """Return the arguments of the training script."""
    if tiny:
        return {"model": model, "size": "small", "length": 32, "batch": 2, "steps": 2, "warm-up": 1, "workers": 0}
    sizes = {"bert-large": (512, 16), "resnet50": (224, 128)}
    length, batch = sizes[model]
    return {"model": model, "size": "full", "length": length, "batch": batch, "steps": 30, "warm-up": 10, "workers": 4}


def flops_of(settings: dict[str, Any]) -> float:
    """Return the operations of a training step per sample."""
    full, length = settings["size"] == "full", settings["length"]
    if settings["model"] == "bert-large":
        return encoder_flops(BERT_LARGE if full else SMALL_BERT, length)
    return resnet_flops(RESNET50 if full else SMALL_RESNET, length)


def peak_of(device: str) -> float | None:
    """Return the peak of bf16 arithmetic of this machine's first device; None where it is not known."""
    if device == "cpu":
        return None
    import torch

    from herringbone_contract.errors import UsageError
    from herringbone_contract.prediction.devices import device_named

    try:
        return device_named(torch.cuda.get_device_name(0)).operations_per_second.get("bfloat16")
    except UsageError:
        return None


def as_process(settings: dict[str, Any], way: str) -> dict[str, Any]:
    """Run the script by itself. Raises `RuntimeError` with the end of its output."""
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--way", way, *words], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{way} ended with exit code {done.returncode}: {done.stdout[-_LAST:]}")
    return figures(done.stdout)


def as_job(settings: dict[str, Any]) -> dict[str, Any]:
    """Run the script as a job of one host. Raises `RuntimeError` with the end of its log."""
    from herringbone import PyTorch

    job = PyTorch(
        entry_point=SCRIPT.name,
        source_dir=str(HERE),
        dependencies=[str(CASES)],
        instance_type="local_process",
        hyperparameters={"way": "job", **settings},
        distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
        environment={name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ},
    ).fit(logs=False)
    output = "\n".join(line.text if hasattr(line, "text") else str(line) for line in job.logs())
    if job.status != "Completed":
        raise RuntimeError(f"the job ended as {job.status}: {output[-_LAST:]}")
    return figures(output)


def figures(output: str) -> dict[str, Any]:
    """Return what the script printed behind the word RESULT."""
    [line] = [line for line in output.splitlines() if "RESULT " in line]
    return dict(json.loads(line.partition("RESULT ")[2]))


def summary(ways: dict[str, dict[str, Any]], flops: float, peak: float | None) -> dict[str, Any]:
    """Return speed, MFU and ratio of each way; the plain loop is the first one."""
    plain = ways["plain"]["samples_per_s"]
    rows = {}
    for name, way in ways.items():
        speed = way["samples_per_s"]
        part = mfu(samples_per_second=speed, flops_per_sample=flops, peak=peak)
        rows[name] = {
            "samples_per_s": round(speed, 3),
            "over_plain": round(speed / plain, 4),
            "mfu": None if part is None else round(part, 4),
            "peak_gb": None if way["peak_bytes"] is None else round(way["peak_bytes"] / 1e9, 3),
            "loss": round(way["loss"], 4),
        }
    return rows


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--model", choices=["bert-large", "resnet50"], required=True)
    options = parser.parse_args()
    settings = settings_of(options.model, tiny=options.tiny)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CASES.parent), os.environ.get("PYTHONPATH", "")])
    if options.device == "cuda":
        # One device: ways that would take all of them could not be compared.
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
    return finish(_compare(options, settings))


def _compare(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    ways: dict[str, dict[str, Any]] = {}
    failed = []
    runs = {"plain": lambda: as_process(settings, "plain"), "herringbone": lambda: as_job(settings)}
    if all(map(importlib.util.find_spec, ("transformers", "accelerate"))):
        runs["trainer"] = lambda: as_process(settings, "trainer")
    with own_home():
        for name, run in runs.items():
            try:
                ways[name] = run()
                print(name, ways[name], flush=True)
            except (RuntimeError, ValueError) as error:
                failed.append(f"{name}: {error}")
                if name == "plain":
                    return {"failed": failed}
    flops = flops_of(settings)
    rows = summary(ways, flops, peak_of(options.device))
    size = {name: settings[name] for name in ("batch", "length")}
    return {**size, "gflop_per_sample": round(flops / 1e9, 3), **rows, **({"failed": failed} if failed else {})}


if __name__ == "__main__":
    sys.exit(main())
