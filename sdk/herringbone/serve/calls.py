"""One call of the service, and what the operations on jobs share: who sees a job, its record, tags and pages. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from herringbone.serve import listing
from herringbone.serve.errors import ApiError, in_use
from herringbone.serve.records import ServiceRecord
from herringbone_contract.constants import masked
from herringbone_contract.masking import masked_hyperparameters

if TYPE_CHECKING:
    from herringbone.serve.links import Held
    from herringbone.serve.signing.keys import AccessKey

PAGE = 10


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the caller's key, the region, and the client's id of the call, which its repetitions share."""

    key: AccessKey
    region: str
    invocation: str = ""
    body: bytes = b""

    @property
    def mark(self) -> str:
        """The mark of the call in a record; "" for a client that gives its calls no ids."""
        if not self.invocation:
            return ""
        return hashlib.sha256(self.invocation.encode() + b"\0" + self.body).hexdigest()


def may_see(record: ServiceRecord | None, call: Call) -> TypeGuard[ServiceRecord]:
    """Report whether a job exists, and the caller may see it."""
    if record is None or not record.submitted or record.region != call.region:
        return False
    return call.key.sees_all or record.owner == call.key.name


def is_repeated(known: ServiceRecord | None, call: Call, noun: str = "Training") -> bool:
    """Report whether a call has created the job already. Raises `ApiError` for a name that another call has taken."""
    if known is None:
        return False
    if known.owner == call.key.name and known.submitted and call.mark and known.call == call.mark:
        return True
    raise name_taken(known.name, noun)


def name_taken(name: str, noun: str = "Training") -> ApiError:
    """Return SageMaker's answer; the noun is Training, or Hyperparameter tuning."""
    return in_use(f"{noun} job names must be unique within an account; {name} exists already")


def new_record(call: Call, name: str, request: dict[str, Any], tags: Any, now: float, held: Held) -> ServiceRecord:
    """Return the record of a job that a call creates; its request is as it may lie on the disk."""
    return ServiceRecord(
        name=name,
        owner=call.key.name,
        region=call.region,
        created=now,
        request=request,
        tags=tags_of(tags),
        call=call.mark,
        held=held,
    )


def stored_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request as it may lie on the disk: secret-sounding values are masked."""
    masks = {"Environment": masked, "HyperParameters": masked_hyperparameters}
    return {name: masks[name](value) if name in masks else value for name, value in request.items()}


def tags_of(tags: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def tag_list(tags: Mapping[str, str]) -> dict[str, Any]:
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def page_of(
    call: Call,
    request: Mapping[str, Any],
    answer: str,
    entries: Iterable[Mapping[str, Any]],
    *,
    key: Callable[[Mapping[str, Any]], str | float | None],
    name: str,
    order: str = "Descending",
    size: int = PAGE,
) -> dict[str, Any]:
    """Return the page of a list that a request asks for, as the member `answer`.

    `order` and `size` are what the list has where the request names none; `listing.page` has the rest.
    """
    filters = {member: value for member, value in request.items() if member not in ("NextToken", "MaxResults")}
    scope = msgspec.json.encode([call.key.name, call.region, answer, sorted(filters.items())])
    chosen, token = listing.page(
        entries,
        key=key,
        name=name,
        descending=request.get("SortOrder", order) == "Descending",
        token=request.get("NextToken"),
        size=request.get("MaxResults", size),
        scope=hashlib.sha256(scope).hexdigest()[:16],
    )
    return {answer: chosen} | ({} if token is None else {"NextToken": token})


def sortable(value: Any) -> str | float | None:
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
