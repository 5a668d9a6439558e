"""Compute a finished job's cost from its description and AWS's list price.

`summarize_cost`, `instance_counts` and `parse_hourly_price` are pure; `Prices` asks AWS's Pricing API.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from herringbone.aws.session import AwsSession
from herringbone_contract.errors import HerringboneError
from herringbone_contract.files import write_whole

_HOUR_SECONDS = 3_600
# The Pricing API runs in a few regions only; each answers for all regions.
_PRICING_REGION = "us-east-1"
_MAX_AGE_SECONDS = 7 * 86_400
_TIMEOUT_SECONDS = 5.0


def summarize_cost(description: Mapping[str, Any], price: Callable[[str], float | None]) -> str | None:
    """Return one line with seconds trained, seconds billed, and the cost; None for a job that never trained.

    >>> hosts = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2}
    >>> summarize_cost({"TrainingTimeInSeconds": 300, "BillableTimeInSeconds": 120, "EnableManagedSpotTraining": True,
    ...                 "ResourceConfig": hosts}, {"ml.g5.xlarge": 1.5}.get)
    'trained 300 s, billed 120 s on each of 2 hosts, 60 % saved by spot, about $0.10'

    `description` is an answer of DescribeTrainingJob; `price` returns the dollars per hour of an instance type. AWS
    bills the wall-clock seconds of each host, and fewer of them for spot. The dollars are an estimate from the list
    price, without storage and transfer.
    """
    trained = description.get("TrainingTimeInSeconds")
    if trained is None:
        return None
    billed = description.get("BillableTimeInSeconds", trained)
    counts = instance_counts(description)
    num_hosts = sum(counts.values())
    parts = [f"trained {trained} s", f"billed {billed} s{f' on each of {num_hosts} hosts' if num_hosts > 1 else ''}"]
    if description.get("EnableManagedSpotTraining") and trained and billed < trained:
        parts.append(f"{round(100 * (1 - billed / trained))} % saved by spot")
    if (cost := cost_of(description, price, billed)) is not None:
        parts.append(f"about ${cost:.2f}")
    return ", ".join(parts)


def cost_of(description: Mapping[str, Any], price: Callable[[str], float | None], seconds: float) -> float | None:
    """Return the dollars of a job's instances for some seconds; None where the price of a type is not known."""
    counts = instance_counts(description)
    prices = {instance_type: price(instance_type) for instance_type in counts}
    hourly = [counts[instance_type] * dollars for instance_type, dollars in prices.items() if dollars is not None]
    # A sum over only some of the instance types would look like the whole cost.
    return math.fsum(hourly) * seconds / _HOUR_SECONDS if counts and len(hourly) == len(prices) else None


def kept_price(instance_type: str, cache: Path) -> float | None:
    """Return the price that an earlier answer of any age and region has; None without one."""
    for path in sorted(cache.glob(f"*-{instance_type}.json")):
        try:
            price = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(price, (int, float)) and price > 0:
            return float(price)
    return None


def instance_counts(description: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of hosts of each instance type of a job."""
    resources = description.get("ResourceConfig") or {}
    counts: dict[str, int] = {}
    for group in resources.get("InstanceGroups") or [resources]:
        if group.get("InstanceType"):
            counts[group["InstanceType"]] = counts.get(group["InstanceType"], 0) + group.get("InstanceCount", 1)
    return counts


def parse_hourly_price(products: Iterable[str]) -> float | None:
    """Return the on-demand price of training in dollars; None unless the products contain exactly one.

    `products` is `PriceList` of the Pricing API: one JSON text per product.
    """
    prices = set()
    for text in products:
        product = json.loads(text)
        if product["product"]["attributes"].get("component") != "Training":
            continue
        for offer in product["terms"].get("OnDemand", {}).values():
            for dimension in offer["priceDimensions"].values():
                prices.add(float(dimension["pricePerUnit"].get("USD", 0)))
    prices.discard(0.0)
    return prices.pop() if len(prices) == 1 else None


class Prices:
    """Prices in dollars per hour, with at most one request per instance type, region and week.

    >>> Prices(session, home.cache / "prices").hourly("ml.g5.xlarge")        # doctest: +SKIP
    1.408

    The folder `cache` keeps answers, also the answer that there is no price. No method raises, and none takes longer
    than `timeout` seconds: a missing price must not disturb the end of a job.
    """

    def __init__(self, session: AwsSession, cache: Path, *, timeout: float = _TIMEOUT_SECONDS) -> None:
        self._session = session
        self._cache = cache
        self._timeout = timeout

    def hourly(self, instance_type: str) -> float | None:
        """Return the price of an instance type in the session's region, None where it is unknown."""
        path = self._cache / f"{self._session.region}-{instance_type}.json"
        try:
            if time.time() - path.stat().st_mtime < _MAX_AGE_SECONDS:
                cached: float | None = json.loads(path.read_text(encoding="utf-8"))
                return cached
        except (OSError, ValueError):
            pass
        answers: list[float | None] = []
        # A thread, because boto3 retries an unreachable endpoint for a minute and has no overall deadline.
        request_thread = threading.Thread(target=self._request, args=(instance_type, answers), daemon=True)
        request_thread.start()
        request_thread.join(self._timeout)
        # A missing answer is stored as well. Otherwise every job that ends would wait for the timeout again.
        price = answers[0] if answers else None
        with contextlib.suppress(OSError):
            self._cache.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(price).encode())
        return price

    def _request(self, instance_type: str, answers: list[float | None]) -> None:
        terms = {"regionCode": self._session.region, "instanceName": instance_type, "component": "Training"}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in terms.items()]
        with contextlib.suppress(HerringboneError, ValueError, KeyError, TypeError):
            with self._session.explain_errors(f"to find the price of {instance_type}"):
                client = self._session.client("pricing", region=_PRICING_REGION)
                answer = client.get_products(ServiceCode="AmazonSageMaker", Filters=filters)
            answers.append(parse_hourly_price(answer["PriceList"]))
