"""Two ranks with TensorFlow on emulated hosts: how much of the sums a step hides. Root only; see README.md.

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
    """Start a rank; the token goes through a pipe, and is in no file and no argument."""
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
        parser.error("network namespaces need root")
    if not PYTHON.exists():
        parser.error("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    token = secrets.token_hex(16).encode()
    with Network(hosts=RANKS, mbit=arguments.mbit) as network:
        processes = [start(network, rank, token, arguments) for rank in range(RANKS)]
        try:
            said = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
        finally:
            for process in processes:
                process.kill()
    slower = {name: [max(pair) for pair in zip(*(rank[name] for rank in said), strict=True)] for name in said[0]}
    found = {f"{name}_s": round(statistics.median(times), 4) for name, times in slower.items()}
    sums = found["sums_s"]
    found["overlap"] = round(1 - (found["step_s"] - found["alone_s"]) / sums, 3)
    found["ceiling"] = round(min(1.0, (found["alone_s"] - found["forward_s"]) / sums), 3)
    print(json.dumps({"mbit": arguments.mbit, "batch": arguments.batch, "repeats": arguments.repeats, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
