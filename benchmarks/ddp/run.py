"""A full training step: stock DistributedDataParallel on `smddp` and on gloo, in turn in one run.

Usage: python benchmarks/ddp/run.py --model conv|bert [--repeats 30]                 two ranks of this machine
       python benchmarks/ddp/run.py --model conv --mbit 200 [--ranks 2] [--helpers 2]     on emulated hosts; root only

The last line is JSON: medians in seconds of the slowest rank. `ours_over_gloo` is the median of the ratios step by
step, `best_gloo` gloo with the best of its bucket sizes. With `--mbit`, `overlap` is the part of a lone sum's time that
a step hides, `ceiling` what a backward of that length could hide, `reachable` what it could with gradients that are
final when they are: no sum begins before there is one.
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
    parser.add_argument("--helpers", type=int, default=0, help="with --mbit: helper hosts beside the ranks'")
    parser.add_argument("--mbit", type=float, help="emulated hosts, a rank each, with links of this capacity")
    parser.add_argument("--core", choices=["native", "python"], default="native")
    return parser.parse_args()


def token_pipe(token: bytes) -> int:
    """A pipe that gives the token once: it is in no file and in no argument."""
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    return reads


class Job:
    """The ranks, and the servers on helper hosts; leaving the `with` block ends what is still there."""

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
        """Return what rank 0 prints."""
        servers = ",".join(self._helper(index) for index in range(self._arguments.helpers))
        ranks = [self._rank(rank, servers) for rank in range(self._arguments.ranks)]
        said, _ = ranks[0].communicate()
        if any(process.wait(30) for process in ranks):
            sys.exit("a rank failed; it has said why above")
        return json.loads(said.splitlines()[-1])  # type: ignore[no-any-return]

    def _start(self, host: int, command: list[str], **environment: str) -> subprocess.Popen[str]:
        inside = [] if self._network is None else self._network.inside(host)
        pipe = token_pipe(self._token)
        process = subprocess.Popen(
            [*inside, sys.executable, *command],
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
        assert self._network is not None, "helpers need hosts"
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


def summary(found: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    seconds, ready = found.pop("seconds"), found.pop("ready")
    median = {variant: statistics.median(taken) for variant, taken in seconds.items()}
    best = min((variant for variant in median if variant.startswith("gloo_") and variant != "gloo_sum"), key=median.get)

    def ratio(other: str) -> float:
        return round(statistics.median(a / b for a, b in zip(seconds["ours"], seconds[other], strict=True)), 3)

    result: dict[str, Any] = {
        "model": arguments.model,
        **{f"{variant}_s": round(value, 4) for variant, value in median.items()},
        "ours_over_gloo": ratio("gloo_25"),
        "best_gloo": best,
        "ours_over_best_gloo": ratio(best),
        **found,
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
    """Return what part of a lone sum a step hides, what it could at most, and their ratio: medians over the rounds."""
    rounds = list(zip(seconds[step], seconds["plain"], seconds["backward"], seconds[lone], strict=True))
    hidden = [1 - (taken - plain) / alone for taken, plain, _, alone in rounds]
    ceiling = [min(1.0, backward / alone) for _, _, backward, alone in rounds]
    return {
        f"{prefix}overlap": round(statistics.median(hidden), 3),
        f"{prefix}ceiling": round(statistics.median(ceiling), 3),
        f"{prefix}of_ceiling": round(statistics.median(hidden) / statistics.median(ceiling), 3),
    }


def reachable_part(passes: list[list[tuple[int, float]]], sum_s: float) -> float:
    """Return the part of a backward during which the links could be at work: the median over some passes.

    Each pass has the bytes of each gradient and when it was final. However they are cut into buckets, the last sum is
    back no earlier than each gradient and all behind it take from when that one is final.
    """
    parts = []
    for final in passes:
        total = left = sum(size for size, _ in final)
        backward_s = end_s = final[-1][1]
        for size, ready_s in final:
            end_s = max(end_s, ready_s + sum_s * left / total)
            left -= size
        # Hidden is what does not come after the backward: 1 - (end - backward) / sum, of at most backward / sum.
        parts.append((sum_s - (end_s - backward_s)) / min(backward_s, sum_s))
    return statistics.median(parts)


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.helpers and arguments.mbit is None:
        print("--helpers needs --mbit: helpers are hosts of their own", file=sys.stderr)
        return 1
    if arguments.mbit is not None and (os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc")))):
        print("--mbit needs root, and `ip` and `tc` (Debian: iproute2): it makes network namespaces", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        hosts = arguments.ranks + arguments.helpers
        network = stack.enter_context(Network(hosts, arguments.mbit)) if arguments.mbit else None
        print(json.dumps(summary(stack.enter_context(Job(arguments, network)).run(), arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
