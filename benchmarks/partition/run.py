"""Compare Herringbone's splits, and the time to decide them, with equal layers and SMP v1's greedy recursion.

Usage: python benchmarks/partition/run.py [--budget 30] [--models gpt2] [--partitions 4]. The last line is JSON.
Costs are those of the costliest partition as a share of the whole model's; 1/partitions is even, without communication.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.partition.baselines import equal_layers, smp_greedy
from benchmarks.partition.certify import certify
from benchmarks.partition.shapes import bert_large, gpt2, resnet50, thousand_modules

from herringbone_parallel.core.partition.costs import CostTree
from herringbone_parallel.core.partition.decide import decide
from herringbone_parallel.core.partition.problem import make_problem, weigh

MODELS = {"resnet50": resnet50, "bert_large": bert_large, "gpt2": gpt2, "thousand_modules": thousand_modules}
REPEATS = 3


def compare(tree: CostTree, partitions: int, memory_weight: float, budget: float) -> dict[str, Any]:
    """Return one row of the table: costs, the gap without and with the budget, and the seconds to decide without it."""
    problem = make_problem(tree, memory_weight)
    took = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        quick = decide(tree, partitions, memory_weight=memory_weight)
        took.append(time.perf_counter() - start)
    best = certify(tree, partitions, memory_weight=memory_weight, budget_seconds=budget) if quick.gap else quick
    others = {
        name: float(weigh(problem, split(tree, partitions, memory_weight), partitions).cost.max())
        for name, split in (("equal_layers", equal_layers), ("smp_greedy", smp_greedy))
    }
    return {
        "partitions": partitions,
        "memory_weight": memory_weight,
        "groups": problem.size,
        "decide_s": round(statistics.median(took), 3),
        **{name: round(cost, 4) for name, cost in others.items()},
        "ours": round(quick.bottleneck, 4),
        "ours_budget": round(best.bottleneck, 4),
        "bound": round(max(quick.bound, best.bound), 4),
        "gap": round(quick.bottleneck / max(quick.bound, best.bound) - 1, 4),
        "gap_budget": round(best.gap, 4),
        "method": best.method,
        "certificate": best.certificate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for proof where the gap is open")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--partitions", nargs="+", type=int, default=[2, 4, 8])
    options = parser.parse_args()
    budget = options.budget
    rows = []
    print(
        "| model | partitions | memory weight | equal layers | SMP greedy | ours | with budget | bound | gap | decide |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in options.models:
        make = MODELS[model]
        for partitions in options.partitions:
            for memory_weight in (0.2, 0.8):
                row = {"model": model, **compare(make(), partitions, memory_weight, budget)}
                rows.append(row)
                print(
                    f"| {model} | {partitions} | {memory_weight} |"
                    f" {row['equal_layers']:.4f} | {row['smp_greedy']:.4f} |"
                    f" {row['ours']:.4f} | {row['ours_budget']:.4f} | {row['bound']:.4f} |"
                    f" {100 * row['gap_budget']:.2f} % | {row['decide_s']:.2f} s |",
                    flush=True,
                )
    print(json.dumps({"budget_s": budget, "rows": rows}))


if __name__ == "__main__":
    main()
