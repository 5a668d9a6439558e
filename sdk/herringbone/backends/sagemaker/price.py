"""The list price of an instance type, asked of AWS's Pricing API once a week for each type and region."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.bill import hourly_price
from herringbone_contract.errors import HerringboneError

# One of the few regions that answer for all.
_REGION = "us-east-1"
_WEEK_SECONDS = 7 * 86_400
_PATIENCE_SECONDS = 5.0


class Prices:
    """Prices in dollars an hour; answers are kept in the folder `cache`, also that there is none.

    >>> Prices(session, home.cache / "prices").hourly("ml.g5.xlarge")        # doctest: +SKIP
    1.408

    Nothing here fails or takes long: a price is good to know, and no more.
    """

    def __init__(self, session: AwsSession, cache: Path, *, patience: float = _PATIENCE_SECONDS) -> None:
        self._session = session
        self._cache = cache
        self._patience = patience

    def hourly(self, instance_type: str) -> float | None:
        """Return the price, None where it is not known."""
        path = self._cache / f"{self._session.region}-{instance_type}.json"
        try:
            if time.time() - path.stat().st_mtime < _WEEK_SECONDS:
                kept: float | None = json.loads(path.read_text(encoding="utf-8"))
                return kept
        except (OSError, ValueError):
            pass
        answers: list[float | None] = []
        # In a thread: where the endpoint cannot be reached, boto3 would try for a minute.
        asker = threading.Thread(target=self._ask, args=(instance_type, answers), daemon=True)
        asker.start()
        asker.join(self._patience)
        price = answers[0] if answers else None
        with contextlib.suppress(OSError):
            self._cache.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(price), encoding="utf-8")
        return price

    def _ask(self, instance_type: str, answers: list[float | None]) -> None:
        wanted = {"regionCode": self._session.region, "instanceName": instance_type, "component": "Training"}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        with contextlib.suppress(HerringboneError, ValueError, KeyError, TypeError):
            with self._session.asking(f"to find the price of {instance_type}"):
                client = self._session.client("pricing", region=_REGION)
                answer = client.get_products(ServiceCode="AmazonSageMaker", Filters=filters)
            answers.append(hourly_price(answer["PriceList"]))
