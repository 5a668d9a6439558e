"""Which way of summing gradients suits hosts that nobody has paid for yet.

Usage: python -m herringbone_parallel.advise --hosts 4 --helpers 4 --mbit 200 --gradient-mb 25 --forward-ms 100
       --backward-ms 200 [--latency-us 50]

A running job says the same of its own links and its own model in its log, once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.advice import spoken_advice
from herringbone_parallel.core.sums.advisor import advise, evenly
from herringbone_parallel.core.sums.cluster import Cluster
from herringbone_parallel.core.sums.links import HostLink

# Of a link, what is left for the elements.
_GOODPUT = 0.951


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of the schemes and what follows from it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m herringbone_parallel.advise", description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, required=True, help="hosts that train")
    parser.add_argument("--helpers", type=int, default=0, help="hosts that only sum (%(default)s)")
    parser.add_argument("--mbit", type=float, required=True, help="capacity of a host's link, Mbit/s each way")
    parser.add_argument("--latency-us", type=float, default=50, help="one way, in microseconds (%(default)s)")
    parser.add_argument("--gradient-mb", type=float, required=True, help="gradients of a step, in MB as they travel")
    parser.add_argument("--forward-ms", type=float, required=True, help="a forward, in milliseconds")
    parser.add_argument("--backward-ms", type=float, required=True, help="a backward, in milliseconds")
    given = parser.parse_args(arguments)
    forward_s, backward_s = given.forward_ms / 1e3, given.backward_ms / 1e3
    try:
        link = HostLink(given.mbit * 1e6 / 8 * _GOODPUT, latency_s=given.latency_us / 1e6)
        cluster = Cluster(given.hosts, link, helpers=given.helpers)
        gradients = evenly(round(given.gradient_mb * 1e6), backward_s)
        print(advise(cluster, gradients, forward_s=forward_s, backward_s=backward_s))
        for line in spoken_advice(cluster, gradients, forward_s=forward_s, backward_s=backward_s, halves=True):
            print(line)
    except ParallelError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
