"""Time a full training step of unmodified DistributedDataParallel on `smddp` and on gloo, in turn in one run.

Usage: python benchmarks/ddp/run.py --model conv|bert [--repeats 30]                 two ranks of this machine
       python benchmarks/ddp/run.py --model conv --mbit 200 [--ranks 2] [--helpers 2]     on emulated hosts; root only

The last line is JSON with medians of the slowest rank, in seconds:

- `ours_over_gloo`: the median of the ratios of each round.
- `best_gloo`: the bucket size with which gloo is fastest.
- `overlap` (with `--mbit`): the part of a lone sum's time that a step hides.
- `ceiling` (with `--mbit`): the part that a backward of this length could hide.
- `reachable` (with `--mbit`): the ceiling, given that no sum can start before its gradients are final.
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
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "allreduce"))
from network import Network  # noqa: E402  the emulated hosts of the other benchmark

_PORTS = (7601, 7602)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["conv", "bert"], default="conv")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--helpers", type=int, default=0, help="with --mbit: helper hosts in addition to the ranks' hosts"
    )
    parser.add_argument("--mbit", type=float, help="emulate hosts of one rank each, with links of this capacity")
    parser.add_argument("--core", choices=["native", "python"], default="native")
    return parser.parse_args()


def token_pipe(token: bytes) -> int:
    """Return a pipe with the token. A pipe can be read once only, unlike a file or an argument."""
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    return reads


class Job:
    """The ranks, and the servers on helper hosts. The end of the `with` block kills the remaining processes."""

    def __init__(self, arguments: argparse.Namespace, network: Network | None) -> None:
        self._arguments, self._network = arguments, network
        self._token = secrets.token_hex(16).encode()
        self._address = "127.0.0.1" if network is None else network.address(0)
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def run(self) -> dict[str, Any]:
        """Start all processes and return rank 0's results."""
        servers = ",".join(self._helper(index) for index in range(self._arguments.helpers))
        ranks = [self._rank(rank, servers) for rank in range(self._arguments.ranks)]
        output, _ = ranks[0].communicate()
        if any(process.wait(30) for process in ranks):
            sys.exit("a rank failed; its error is above")
        return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]

    def _start(self, host: int, command: list[str], **environment: str) -> subprocess.Popen[str]:
        prefix = [] if self._network is None else self._network.inside(host)
        pipe = token_pipe(self._token)
        process = subprocess.Popen(
            [*prefix, sys.executable, *command],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "HERRINGBONE_REDUCE": self._arguments.core,
                "HERRINGBONE_REDUCE_TOKEN_FILE": f"/dev/fd/{pipe}",
                **environment,
            },
            pass_fds=[pipe],
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(pipe)
        self._processes.append(process)
        return process

    def _helper(self, index: int) -> str:
        assert self._network is not None, "helpers need emulated hosts"
        host = self._arguments.ranks + index
        address = self._network.address(host)
        process = self._start(
            host,
            ["-m", "herringbone_parallel.reduce.server"],
            WORLD_SIZE=str(self._arguments.ranks),
            HERRINGBONE_REDUCE_HOST=f"helper-{index}",
            HERRINGBONE_REDUCE_LISTEN=address,
        )
        assert process.stdout is not None
        return f"helper-{index}={address}:{json.loads(process.stdout.readline())['port']}"

    def _rank(self, rank: int, servers: str) -> subprocess.Popen[str]:
        emulated = self._network is not None
        local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if emulated else {}
        meet, master = _PORTS
        return self._start(
            rank,
            [str(HERE / "rank.py"), self._arguments.model, str(self._arguments.repeats)],
            RANK=str(rank),
            WORLD_SIZE=str(self._arguments.ranks),
            **({"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self._arguments.ranks)} | local),
            MASTER_ADDR=self._address,
            MASTER_PORT=str(master),
            GLOO_SOCKET_IFNAME="eth0" if emulated else "lo",
            HERRINGBONE_REDUCE_MEET=f"{self._address}:{meet}",
            HERRINGBONE_REDUCE_HOST=f"host-{rank}" if emulated else "host",
            HERRINGBONE_REDUCE_SERVERS=servers,
        )


def summary(results: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the last line's content from rank 0's results."""
    seconds, ready = results.pop("seconds"), results.pop("ready")
    median = {variant: statistics.median(values) for variant, values in seconds.items()}
    best = min((variant for variant in median if variant.startswith("gloo_") and variant != "gloo_sum"), key=median.get)

    def ratio(other: str) -> float:
        return round(statistics.median(a / b for a, b in zip(seconds["ours"], seconds[other], strict=True)), 3)

    result: dict[str, Any] = {
        "model": arguments.model,
        **{f"{variant}_s": round(value, 4) for variant, value in median.items()},
        "ours_over_gloo": ratio("gloo_25"),
        "best_gloo": best,
        "ours_over_best_gloo": ratio(best),
        **results,
        "ranks": arguments.ranks,
        "helpers": arguments.helpers,
        "mbit": arguments.mbit,
        "repeats": arguments.repeats,
    }
    if arguments.mbit:
        result |= overlaps(seconds, "ours", "sum", "")
        result |= overlaps(seconds, best, "gloo_sum", "gloo_")
        best_part = reachable_part(ready, median["sum"])
        result["reachable"] = round(best_part * result["ceiling"], 3)
        result["of_reachable"] = round(result["overlap"] / (best_part * result["ceiling"]), 3)
    return result


def overlaps(seconds: dict[str, list[float]], step: str, lone: str, prefix: str) -> dict[str, float]:
    """Return the part of a lone sum that a step hides, the part that it could hide, and their ratio: medians."""
    rounds = list(zip(seconds[step], seconds["plain"], seconds["backward"], seconds[lone], strict=True))
    hidden = [1 - (step_s - plain) / alone for step_s, plain, _, alone in rounds]
    ceiling = [min(1.0, backward / alone) for _, _, backward, alone in rounds]
    return {
        f"{prefix}overlap": round(statistics.median(hidden), 3),
        f"{prefix}ceiling": round(statistics.median(ceiling), 3),
        f"{prefix}of_ceiling": round(statistics.median(hidden) / statistics.median(ceiling), 3),
    }


def reachable_part(passes: list[list[tuple[int, float]]], sum_s: float) -> float:
    """Return the part of a backward during which the links can be busy: the median over some passes.

    Each pass has the bytes of each gradient, and the time at which the gradient was final. With any buckets, the sums
    cannot end before the time at which a gradient is final plus the time to sum it and all later gradients.
    """
    parts = []
    for final in passes:
        total = left = sum(size for size, _ in final)
        backward_s = end_s = final[-1][1]
        for size, ready_s in final:
            end_s = max(end_s, ready_s + sum_s * left / total)
            left -= size
        # The hidden part is 1 - (end - backward) / sum. Its ceiling is backward / sum. Return their ratio.
        parts.append((sum_s - (end_s - backward_s)) / min(backward_s, sum_s))
    return statistics.median(parts)


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.helpers and arguments.mbit is None:
        print("--helpers needs --mbit, because each helper is an emulated host", file=sys.stderr)
        return 1
    if arguments.mbit is not None and (os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc")))):
        print("--mbit needs root, `ip` and `tc` (Debian: iproute2) to create network namespaces", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        hosts = arguments.ranks + arguments.helpers
        network = stack.enter_context(Network(hosts, arguments.mbit)) if arguments.mbit else None
        print(json.dumps(summary(stack.enter_context(Job(arguments, network)).run(), arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
