"""Time a training step of a Keras model split over two processes, and in one process, in turn within one run.

Usage: python benchmarks/pipeline_tf/run.py [--workload large] [--microbatches 8] [--pipeline interleaved] [--repeats 9]
The last line is JSON: medians in seconds, `efficiency` = single / (2 x ours), `theory` = m / (m + 1), of it the share.
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

from herringbone_entry.channel.reserved_port import ReservedPort

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PYTHON = ROOT / ".venv-tf" / "bin" / "python"
RANKS = 2


def start(rank: int, port: int, token: bytes, arguments: argparse.Namespace) -> subprocess.Popen[str]:
    """Start a rank, pinned to one core. The token goes through a pipe, so that no file and no argument has it."""
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    parameters = {
        "partitions": RANKS,
        "microbatches": arguments.microbatches,
        "pipeline": arguments.pipeline,
        "auto_partition": False,
        "default_partition": 0,
    }
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("contract", "parallel")),
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "HERRINGBONE_REDUCE_MEET": f"127.0.0.1:{port}",
        "HERRINGBONE_REDUCE_TOKEN_FILE": f"/dev/fd/{reads}",
        "HERRINGBONE_REDUCE_HOST": "host",
        "SM_HP_MP_PARAMETERS": json.dumps(parameters),
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    core = sorted(os.sched_getaffinity(0))[rank]
    command = ["taskset", "-c", str(core), str(PYTHON), str(HERE / "rank.py"), arguments.workload]
    command += [str(arguments.microbatches), str(arguments.repeats)]
    process = subprocess.Popen(command, env=environment, pass_fds=[reads], stdout=subprocess.PIPE, text=True)
    os.close(reads)
    return process


def median(ranks: list[dict[str, Any]], case: str, measure: str) -> float:
    """Return the median over the steps: of the slowest rank's seconds, or of the sum over ranks for other measures."""
    steps = zip(*([spent[measure] for spent in rank[case]] for rank in ranks), strict=True)
    return statistics.median(map(max if measure == "seconds" else sum, steps))


def summary(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    m = arguments.microbatches
    ours, single, both, at_once = (median(ranks, case, "seconds") for case in ("ours", "single", "both", "at_once"))
    cpu = [median([rank], "ours", "cpu_s") for rank in ranks]
    theory, efficiency = m / (m + RANKS - 1), single / (RANKS * ours)
    return {
        "workload": arguments.workload,
        "microbatches": m,
        "pipeline": arguments.pipeline,
        "ours_s": round(ours, 4),
        "single_s": round(single, 4),
        "stage_s": round(single / (RANKS * m), 4),
        "speedup": round(single / ours, 3),
        "efficiency": round(efficiency, 3),
        "theory": round(theory, 3),
        "share_of_theory": round(efficiency / theory, 3),
        # One process with the whole batch and no microbatches, if its memory allows that.
        "at_once_s": round(at_once, 4),
        "speedup_over_at_once": round(at_once / ours, 3),
        # Time of a process while another one runs the same, over time alone: two cores are worth 2 / contention.
        "contention": round(both / single, 3),
        "share_of_both": round(both / (RANKS * ours) / theory, 3),
        # Processor time of a step: of each rank, and of a process while another one runs the same.
        "cpu_s": [round(seconds, 4) for seconds in cpu],
        "both_cpu_s": [round(median([rank], "both", "cpu_s"), 4) for rank in ranks],
        "faults": [median([rank], "ours", "faults") for rank in ranks],
        "single_faults": median(ranks[:1], "single", "faults"),
        "peak_bytes": [rank["peak_bytes"] for rank in ranks],
        "single_peak_bytes": ranks[0]["single_peak_bytes"],
        "peak_live": [rank["peak_live"] for rank in ranks],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=["encoder", "large", "small"], default="large")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--pipeline", choices=["simple", "interleaved"], default="interleaved")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    if not PYTHON.exists():
        parser.error("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    if len(os.sched_getaffinity(0)) < RANKS:
        parser.error(f"{RANKS} ranks need {RANKS} cores")
    token = secrets.token_hex(16).encode()
    port = ReservedPort()
    port.release()
    processes = [start(rank, port.number, token, arguments) for rank in range(RANKS)]
    try:
        ranks = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
    print(json.dumps(summary(arguments, ranks)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
