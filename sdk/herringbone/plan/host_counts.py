"""The numbers of hosts with which a job may go on: from `min_instance_count` to its own. Pure."""

from __future__ import annotations

from herringbone.plan.options.typed import Options
from herringbone_contract.distribution import Distribution, check_layout
from herringbone_contract.errors import DistributionError, OptionError


def fewer_hosts(
    options: Options, groups: int, distribution: Distribution, hosts: int, ranks: int | None
) -> tuple[int, ...]:
    """Return the host counts below the job's own, down to `min_instance_count`, for which a layout exists."""
    minimum = options.min_instance_count
    if options.keep_global_batch and (minimum is None or minimum >= hosts):
        raise OptionError(
            "keep_global_batch: the job keeps its hosts; give a min_instance_count below instance_count, "
            "or leave it out"
        )
    if minimum is None:
        return ()
    if groups > 1:
        raise OptionError("min_instance_count: a job of several instance_groups keeps its hosts; leave it out")
    if minimum > hosts:
        raise OptionError(f"min_instance_count: {minimum} is more than instance_count, {hosts}")
    counts = []
    # Largest first, because a retry takes the first count for which it gets hosts.
    for count in range(hosts - 1, minimum - 1, -1):
        try:
            if ranks is not None:
                check_layout(distribution, hosts=count, processes_per_host=ranks)
        except DistributionError as error:
            # The user named this count, so it has to work. A count in between may fail: the job skips it.
            if count == minimum:
                raise DistributionError(f"min_instance_count: {minimum}: {error}") from None
        else:
            counts.append(count)
    return tuple(counts)
