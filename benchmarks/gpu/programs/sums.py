"""Time sums of tensors, and steps of DistributedDataParallel, with `smddp` and NCCL, between emulated hosts.

Usage: python sums.py [--device cuda|cpu] [--tiny] [--hosts 2] [--per-host 4] [--mb 1 4 25 100] [--repeats 20]

The last line is JSON: for each size the slowest rank's medians in seconds, and the largest difference of the two sums,
relative to the largest value; then the same for steps of a ResNet-50. On a CPU gloo takes the place of NCCL.
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
from typing import Any

import torch
from common import ROOT, end_on_sigterm, finish, free_port, options_of

RANK = Path(__file__).resolve().with_name("sums_rank.py")


def parse() -> argparse.Namespace:
    parser = options_of(__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, help="ranks per host, with one device each (default: all devices)")
    parser.add_argument("--mb", type=float, nargs="+", help="megabytes of the tensors")
    parser.add_argument("--repeats", type=int)
    options = parser.parse_args()
    options.mb = options.mb or ([0.5] if options.tiny else [1.0, 4.0, 25.0, 100.0])
    options.repeats = options.repeats or (2 if options.tiny else 20)
    return options


def start(options: argparse.Namespace, rank: int, ports: tuple[int, int], token: bytes) -> subprocess.Popen[str]:
    host, local = divmod(rank, options.per_host)
    meet, master = ports
    # The token goes through a pipe, so that no file and no argument has it.
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    words = [options.device, "small" if options.tiny else "full", options.repeats, *options.mb]
    process = subprocess.Popen(
        [sys.executable, str(RANK), *map(str, words)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks" / "plan"), os.environ.get("PYTHONPATH", "")]),
            "RANK": str(rank),
            "WORLD_SIZE": str(options.hosts * options.per_host),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(options.per_host),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master),
            "GLOO_SOCKET_IFNAME": "lo",
            # NCCL treats ranks with different ids as ranks of different hosts: it uses sockets between them, and two
            # of them may share a device.
            "NCCL_HOSTID": f"host-{host}",
            "NCCL_SOCKET_IFNAME": "lo",
            "HERRINGBONE_REDUCE_MEET": f"127.0.0.1:{meet}",
            "HERRINGBONE_REDUCE_HOST": f"host-{host}",
            "HERRINGBONE_REDUCE_TOKEN_FILE": f"/dev/fd/{reads}",
        },
        pass_fds=[reads],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(reads)
    return process


def row_of(measured: dict[str, Any]) -> dict[str, Any]:
    """Return medians and their ratio: how much longer the other library takes.

    >>> row_of({"mb": 4.0, "difference": 1e-7, "smddp": [0.1, 0.2, 0.3], "nccl": [0.3, 0.3, 0.5]})
    {'mb': 4.0, 'difference': 1e-07, 'smddp_s': 0.2, 'nccl_s': 0.3, 'nccl_over_smddp': 1.5}
    """
    row = {name: value for name, value in measured.items() if not isinstance(value, list)}
    medians = {name: statistics.median(value) for name, value in measured.items() if isinstance(value, list)}
    [other] = set(medians) - {"smddp"}
    row |= {f"{name}_s": round(value, 6) for name, value in medians.items()}
    return {**row, f"{other}_over_smddp": round(medians[other] / medians["smddp"], 3)}


def main() -> int:
    options = parse()
    # Ranks on a CPU share the cores, as two hosts with one device share the device.
    devices = torch.cuda.device_count() if options.device == "cuda" else options.hosts
    if not devices:
        return finish({"failed": ["this machine has no CUDA device; --device cpu runs the same program over gloo"]})
    options.per_host = options.per_host or max(1, devices // options.hosts)
    if options.per_host > devices:
        return finish({"failed": [f"--per-host {options.per_host} needs as many devices, and there are {devices}"]})
    end_on_sigterm()
    token = secrets.token_hex(16).encode()
    ports = free_port(), free_port()
    ranks: list[subprocess.Popen[str]] = []
    try:
        ranks += [start(options, rank, ports, token) for rank in range(options.hosts * options.per_host)]
        output, _ = ranks[0].communicate()
        if any(process.wait(60) for process in ranks):
            return finish({"failed": ["a rank failed; its error is above"]})
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    measured = json.loads(output.splitlines()[-1])
    shape = {"hosts": options.hosts, "per_host": options.per_host, "repeats": options.repeats}
    return finish({**shape, "sums": [row_of(size) for size in measured["sums"]], "ddp": row_of(measured["ddp"])})


if __name__ == "__main__":
    sys.exit(main())
