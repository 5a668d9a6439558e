"""Predict the fastest way to sum gradients between hosts that you do not rent yet.

Usage: python -m herringbone_parallel.advise --hosts 4 --helpers 4 --mbit 200 --gradient-mb 25 --forward-ms 100
       --backward-ms 200 [--latency-us 50]

A running job logs the same advice once, for its measured links and its own model.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.advice import advise
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import HostLink
from herringbone_parallel.core.sums.prediction import evenly

# The share of a link's capacity that Ethernet, IP and TCP headers leave for gradients.
_GOODPUT = 0.951


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the schemes and the advice that follows from it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m herringbone_parallel.advise", description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, required=True, help="hosts that train")
    parser.add_argument("--helpers", type=int, default=0, help="hosts that only sum (%(default)s)")
    parser.add_argument("--mbit", type=float, required=True, help="capacity of a host's link, Mbit/s each way")
    parser.add_argument("--latency-us", type=float, default=50, help="one way, in microseconds (%(default)s)")
    parser.add_argument("--gradient-mb", type=float, required=True, help="gradients of a step, in MB as they travel")
    parser.add_argument("--forward-ms", type=float, required=True, help="a forward, in milliseconds")
    parser.add_argument("--backward-ms", type=float, required=True, help="a backward, in milliseconds")
    options = parser.parse_args(arguments)
    forward_s, backward_s = options.forward_ms / 1e3, options.backward_ms / 1e3
    try:
        link = HostLink(options.mbit * 1e6 / 8 * _GOODPUT, latency_s=options.latency_us / 1e6)
        cluster = Cluster(options.hosts, link, helpers=options.helpers)
        gradients = evenly(round(options.gradient_mb * 1e6), backward_s)
        print(advise(cluster, gradients, forward_s=forward_s, backward_s=backward_s, halves=True))
    except ParallelError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
