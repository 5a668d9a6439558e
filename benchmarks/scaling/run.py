"""Simulate how BERT-large and ResNet-50 scale at 100 Gbit/s, on 8 to 2,048 hosts of 8 GPUs.

Usage: python benchmarks/scaling/run.py [--hosts 8 256] [--latency-us 50] [--message-us 1] [--gbit 100] [--svg FILE].
Prints the tables of benchmarks/scaling/simulated.md; the last line is JSON. Uses no network and no clock, so every
machine prints the same figures.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.scaling.models import Workload, bert_large, resnet_50
from benchmarks.scaling.plot import Panel, draw

from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import HostLink
from herringbone_parallel.core.sums.prediction import (
    HELPERS,
    MIXED,
    RING,
    SHARDED,
    TREE,
    Predictor,
    predict_schemes,
)

HOSTS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048]
GPUS_PER_HOST = 8
# The share of a link that TCP or SRD leave for gradients.
GOODPUT = 0.9
# A V100's share of NVLink as NCCL uses it, between the 8 of a host.
INSIDE = HostLink(bytes_per_s=100e9, latency_s=10e-6)
# The buffer of a switch port: window x chunk x workers stays below it where possible.
QUEUE_BYTES = 16 << 20
SCHEMES = (RING, TREE, SHARDED, MIXED, HELPERS)
# (model, speed of the GPUs in V100s) -> published efficiency on 2,048 V100, and its label.
PUBLISHED = {("BERT-large", 1): (0.85, "published: 85 %"), ("ResNet-50", 1): (0.77, "published: 77 %")}
PUBLISHED_GPUS = 2048


def host_link(gbit: float = 100, latency_us: float = 20, message_us: float = 0.2) -> HostLink:
    """Return a host's link; by default 20 us from process to process, and 5 million messages per second."""
    return HostLink(GOODPUT * gbit / 8 * 1e9, latency_us * 1e-6, message_us * 1e-6)


def efficiencies(work: Workload, hosts: int, link: HostLink) -> dict[str, float]:
    """Return each scheme's efficiency: the time of a step on one GPU divided by the time of a step on all."""
    predictor = Predictor(work.gradients, forward_s=work.forward_s, backward_s=work.backward_s, queue_bytes=QUEUE_BYTES)
    efficiency = {}
    for helpers in (hosts, hosts // 4):
        predictions = predict_schemes(predictor, Cluster(hosts, link, helpers, GPUS_PER_HOST, INSIDE))
        efficiency |= {
            scheme: predictor.compute_s / prediction.step_s
            for scheme, prediction in predictions.items()
            if scheme in SCHEMES
        }
    return efficiency


def explaining_jitter(predicted: float, published: float, ranks: int) -> float:
    """Return the relative spread of a rank's step that lowers a predicted efficiency to the published one.

    A step waits for the slowest rank. The largest of `ranks` normal deviates is expected at about
    sqrt(2 ln n) - (ln ln n + ln 4 pi - 2 gamma) / (2 sqrt(2 ln n)) standard deviations.
    """
    root = math.sqrt(2 * math.log(ranks))
    largest = root - (math.log(math.log(ranks)) + math.log(4 * math.pi) - 2 * 0.5772) / (2 * root)
    return (predicted / published - 1) / largest


def table(rows: dict[int, dict[str, float]]) -> list[str]:
    """Return the efficiencies as a table in Markdown."""
    lines = ["| hosts | GPUs | ring | tree | sharded | mixed, n/4 helpers | n helpers |", "|---" * 7 + "|"]
    for hosts, row in rows.items():
        cells = " | ".join(f"{row[name]:.1%}" for name in SCHEMES)
        lines.append(f"| {hosts:,} | {hosts * GPUS_PER_HOST:,} | {cells} |")
    return lines


def panel(title: str, work: Workload, speed: int, rows: dict[int, dict[str, float]]) -> Panel:
    """Return the chart of one model on one kind of GPU."""
    lines = {
        name: [(hosts, row[scheme]) for hosts, row in rows.items()]
        for name, scheme in zip(
            ("ring", "tree", "sharded, no helpers", "n/4 helpers", "n helpers"), SCHEMES, strict=True
        )
    }
    known = PUBLISHED.get((work.name, speed))
    hosts = PUBLISHED_GPUS // GPUS_PER_HOST
    return Panel(title, lines, (hosts, *known) if known and hosts in rows else None)


def scenarios() -> Iterator[tuple[str, int, Workload]]:
    """Yield the simulated cases: a title, the speed of the GPUs in V100s, and the model's step on one of them."""
    for speed, gpu in ((1, "V100"), (8, "a GPU 8 times as fast")):
        for work in (bert_large(speed), resnet_50(speed)):
            yield f"{work.name}, {gpu}: {(work.forward_s + work.backward_s) * 1e3:.1f} ms a step", speed, work


def explanation(work: Workload, speed: int, rows: dict[int, dict[str, float]]) -> str:
    """Return a sentence about the difference between prediction and published figure, or "" without such a figure."""
    known, hosts = PUBLISHED.get((work.name, speed)), PUBLISHED_GPUS // GPUS_PER_HOST
    if not known or hosts not in rows or rows[hosts][HELPERS] <= known[0]:
        return ""
    predicted = rows[hosts][HELPERS]
    jitter = explaining_jitter(predicted, known[0], PUBLISHED_GPUS)
    return f"A spread of {jitter:.1%} of a rank's step would bring {predicted:.1%} down to {known[0]:.0%}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    parser.add_argument("--svg", type=Path, help="file for the figure")
    parser.add_argument("--gbit", type=float, default=100, help="each host's link, each way")
    parser.add_argument("--latency-us", type=float, default=20, help="from one process to another")
    parser.add_argument("--message-us", type=float, default=0.2, help="microseconds that each message occupies a link")
    options = parser.parse_args()
    link = host_link(options.gbit, options.latency_us, options.message_us)
    panels, result = [], {}
    for title, speed, work in scenarios():
        rows = {hosts: efficiencies(work, hosts, link) for hosts in options.hosts}
        print("\n".join(["", f"### {title}", "", *table(rows), "", explanation(work, speed, rows)]))
        panels.append(panel(title, work, speed, rows))
        result[f"{work.name} x{speed}"] = {n: {k: round(v, 4) for k, v in row.items()} for n, row in rows.items()}
    if options.svg:
        options.svg.write_text(draw(panels), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
