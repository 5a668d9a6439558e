"""Measure the part of its sums that a TensorFlow step hides, with two ranks on emulated hosts. Needs root.

Usage: python benchmarks/tensorflow/run.py --mbit 200 [--batch 256] [--repeats 10]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "allreduce"))
from network import Network  # noqa: E402  the emulated hosts of the other benchmark

PYTHON = ROOT / ".venv-tf" / "bin" / "python"
RANKS = 2


def start(network: Network, rank: int, token: bytes, arguments: argparse.Namespace) -> subprocess.Popen[str]:
    """Start a rank. The token goes through a pipe, so that no file and no argument has it."""
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("contract", "parallel")),
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "HERRINGBONE_REDUCE_MEET": f"{network.address(0)}:7601",
        "HERRINGBONE_REDUCE_TOKEN_FILE": f"/dev/fd/{reads}",
        "HERRINGBONE_REDUCE_HOST": f"host-{rank}",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [*network.inside(rank), str(PYTHON), str(HERE / "rank.py"), str(arguments.batch), str(arguments.repeats)]
    process = subprocess.Popen(command, env=environment, pass_fds=[reads], stdout=subprocess.PIPE, text=True)
    os.close(reads)
    return process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root: run the benchmark with sudo")
    if not PYTHON.exists():
        parser.error(f"{PYTHON} is missing: run tests/tensorflow/setup")
    token = secrets.token_hex(16).encode()
    with Network(hosts=RANKS, mbit=arguments.mbit) as network:
        processes = [start(network, rank, token, arguments) for rank in range(RANKS)]
        try:
            ranks = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
        finally:
            for process in processes:
                process.kill()
    slower = {name: [max(pair) for pair in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}
    result = {f"{name}_s": round(statistics.median(times), 4) for name, times in slower.items()}
    sums = result["sums_s"]
    result["overlap"] = round(1 - (result["step_s"] - result["alone_s"]) / sums, 3)
    result["ceiling"] = round(min(1.0, (result["alone_s"] - result["forward_s"]) / sums), 3)
    print(json.dumps({"mbit": arguments.mbit, "batch": arguments.batch, "repeats": arguments.repeats, **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
