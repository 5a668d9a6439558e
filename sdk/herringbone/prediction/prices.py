"""The price of a host in dollars per hour: of `ml.*` types from AWS's price list, of others from their inventory."""

from __future__ import annotations

import json
from pathlib import Path

from herringbone_contract.errors import HerringboneError


def price_of(instance_type: str, cache: Path) -> float | None:
    """Return the on-demand price of an `ml.*` type in dollars per hour; None where it is not known.

    >>> price_of("ml.g5.xlarge", home.cache / "prices")              # doctest: +SKIP
    1.408

    AWS is asked at most once a week. Without AWS's packages, a region or a network, an older answer of any region
    counts.
    """
    if not instance_type.startswith("ml."):
        return None
    try:
        from herringbone.aws.session import AwsSession
        from herringbone.backends.sagemaker.pricing import Prices

        price = Prices(AwsSession(attempts=1), cache).hourly(instance_type)
    except (HerringboneError, ImportError):
        price = None
    return _kept(instance_type, cache) if price is None else price


def _kept(instance_type: str, cache: Path) -> float | None:
    for path in sorted(cache.glob(f"*-{instance_type}.json")):
        try:
            price = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(price, (int, float)) and price > 0:
            return float(price)
    return None
