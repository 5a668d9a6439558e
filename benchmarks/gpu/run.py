"""Time sums of tensors on CUDA devices with `smddp` and NCCL, in turn, between emulated hosts of this machine.

Usage: python benchmarks/gpu/run.py [--hosts 2] [--per-host 4] [--mb 1 4 25 100] [--repeats 20]

The last line is JSON: for each size the slowest rank's medians in seconds, and the largest difference of the two sums,
relative to the largest value. Without a CUDA device the benchmark exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

RANK = Path(__file__).resolve().with_name("rank.py")
_PORTS = (7601, 7602)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, help="ranks per host, with one device each (default: all devices)")
    parser.add_argument("--mb", type=float, nargs="+", default=[1.0, 4.0, 25.0, 100.0])
    parser.add_argument("--repeats", type=int, default=20)
    return parser.parse_args()


def start(arguments: argparse.Namespace, rank: int, token: bytes) -> subprocess.Popen[str]:
    host, local = divmod(rank, arguments.per_host)
    meet, master = _PORTS
    # The token goes through a pipe, so that no file and no argument has it.
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    process = subprocess.Popen(
        [sys.executable, str(RANK), str(arguments.repeats), *map(str, arguments.mb)],
        env={
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(arguments.hosts * arguments.per_host),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(arguments.per_host),
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


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for size in results:
        ours, nccl = (statistics.median(size[method]) for method in ("smddp", "nccl"))
        row = {"mb": size["mb"], "ours_s": round(ours, 6), "nccl_s": round(nccl, 6)}
        rows.append({**row, "nccl_over_ours": round(nccl / ours, 3), "difference": size["difference"]})
    return rows


def main() -> int:
    arguments = parse()
    devices = torch.cuda.device_count()
    if not devices:
        print(
            "this machine has no CUDA device, which NCCL needs; benchmarks/allreduce and benchmarks/ddp measure sums on"
            " CPUs",
            file=sys.stderr,
        )
        return 1
    arguments.per_host = arguments.per_host or max(1, devices // arguments.hosts)
    if arguments.per_host > devices:
        print(f"--per-host {arguments.per_host} needs as many devices, but there are {devices}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    token = secrets.token_hex(16).encode()
    ranks: list[subprocess.Popen[str]] = []
    try:
        ranks += [start(arguments, rank, token) for rank in range(arguments.hosts * arguments.per_host)]
        output, _ = ranks[0].communicate()
        if any(process.wait(60) for process in ranks):
            sys.exit("a rank failed; its error is above")
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    machine = {"device": torch.cuda.get_device_name(0), "devices": devices, "torch": torch.__version__}
    shape = {"hosts": arguments.hosts, "per_host": arguments.per_host, "repeats": arguments.repeats}
    print(json.dumps({**machine, **shape, "sums": summary(json.loads(output.splitlines()[-1]))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
