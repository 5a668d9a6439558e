"""Time an all-reduce on emulated hosts with limited links: ours, gloo and Open MPI's ring, in turn. Needs root.

Usage: python benchmarks/allreduce/run.py --workers 4 --helpers 4 --mbit 200 --mb 25 [--repeats 5] [--wire fp16]
The last line is JSON. `*_s` are medians over the repeats of the slowest rank's seconds. `bound_s` is the theoretical
minimum for these workers and helpers on links of 0.951 x the limit. `sent_bytes_max` is the interface counter of the
busiest worker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from network import Network
from world import OPENMPI, World, ours_helpers

from herringbone_parallel.core.sums.shards import busiest_share

# The share of the limit that a TCP stream carries on these links: a measured value.
GOODPUT = 0.951


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--helpers", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=200)
    parser.add_argument("--mb", type=float, default=25, help="gradient, in MB of fp32")
    parser.add_argument("--wire", choices=["fp16", "bf16"], help="ours: send 16 bits per number, and sum in fp32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", choices=["native", "python"], default="native")
    parser.add_argument("--openmpi", type=Path, default=OPENMPI, help="folder with bin/mpirun and lib/libmpi.so.40")
    parser.add_argument(
        "--only",
        choices=["ours", "gloo", "mpi_ring"],
        action="append",
        help="measure only this method; may be repeated",
    )
    return parser.parse_args()


def measure(
    worlds: dict[str, World], network: Network, arguments: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    count = int(arguments.mb * 1e6) // 4
    steps: dict[str, list[dict[str, Any]]] = {method: [] for method in worlds}
    for repeat in range(arguments.repeats + 1):
        for method, world in worlds.items():
            before = [network.traffic(host) for host in range(arguments.workers + arguments.helpers)]
            step = world.step(count, check=method == "ours" and repeat == 0)
            after = [network.traffic(host) for host in range(arguments.workers + arguments.helpers)]
            workers = list(zip(before, after, strict=True))[: arguments.workers]
            step["sent"] = max(new.sent - old.sent for old, new in workers)
            step["dropped"] = sum(new.dropped - old.dropped for old, new in zip(before, after, strict=True))
            if repeat:  # in the first step TCP windows and buffers grow
                steps[method].append(step)
                row = {key: value for key, value in step.items() if key != "digests"}
                print(json.dumps({"method": method, **row}), file=sys.stderr, flush=True)
            elif "error" in step:
                print(json.dumps({"error": step["error"], "root_mean_square": step["root"]}), file=sys.stderr)
                world.error = step["error"] / step["root"]
            assert len(step["digests"]) == 1, f"{method}: sums differ between ranks"
    return steps


def main() -> int:
    arguments = parse()
    if os.geteuid() != 0:
        print("benchmarks/allreduce needs root to create network namespaces", file=sys.stderr)
        return 1
    for name in ("ip", "tc"):
        if shutil.which(name) is None:
            print(f"benchmarks/allreduce needs `{name}` (Debian: iproute2)", file=sys.stderr)
            return 1
    methods = arguments.only or ["ours", "gloo", "mpi_ring"]
    if "mpi_ring" in methods and not arguments.openmpi.exists():
        missing = f"mpi_ring needs Open MPI in {arguments.openmpi}: see README.md, or give --only ours --only gloo"
        print(missing, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hb-allreduce-")))
        network = stack.enter_context(Network(arguments.workers + arguments.helpers, arguments.mbit))
        token = secrets.token_hex(16).encode()
        helpers = []
        if "ours" in methods:
            helpers = [stack.enter_context(helper) for helper in ours_helpers(network, arguments, token)]
        worlds = {
            method: stack.enter_context(World(method, network, arguments, folder, token, helpers)) for method in methods
        }
        steps = measure(worlds, network, arguments)
        print(json.dumps(summary(steps, worlds, arguments)))
    return 0


def summary(
    steps: dict[str, list[dict[str, Any]]], worlds: dict[str, World], arguments: argparse.Namespace
) -> dict[str, Any]:
    bytes_per_second = arguments.mbit * 1e6 / 8 * GOODPUT
    gradient = int(arguments.mb * 1e6) // 4 * 4
    on_wire = gradient // 2 if arguments.wire else gradient
    median = {
        method: round(statistics.median(step["seconds"] for step in measured), 4) for method, measured in steps.items()
    }
    result: dict[str, Any] = {f"{method}_s": median.get(method) for method in ("ours", "gloo", "mpi_ring")} | {
        "bound_s": round(busiest_share(arguments.workers, arguments.helpers) * on_wire / bytes_per_second, 4),
        "sent_bytes_max": max((step["sent"] for step in steps.get("ours", [])), default=None),
        "gradient_bytes": gradient,
        "workers": arguments.workers,
        "helpers": arguments.helpers,
        "mbit": arguments.mbit,
        "wire": arguments.wire or "fp32",
        "repeats": arguments.repeats,
    }
    if "ours" in steps:
        result["of_bound"] = round(result["bound_s"] / median["ours"], 3)
        result["dropped"] = sum(step["dropped"] for step in steps["ours"])
        result["servers_sleeps"] = statistics.median(step["servers_sleeps"] for step in steps["ours"])
        result["servers_cpu_s"] = round(statistics.median(step["servers_cpu"] for step in steps["ours"]), 3)
        result["worker_cpu_s"] = round(statistics.median(step["cpu"] for step in steps["ours"]), 3)
        result["error"] = worlds["ours"].error
        peers = [median[method] for method in ("gloo", "mpi_ring") if method in median]
        result["speed_up"] = round(min(peers) / median["ours"], 3) if peers else None
    return result


if __name__ == "__main__":
    sys.exit(main())
