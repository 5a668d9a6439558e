"""AWS's protocols: JSON, the form of Query with XML back, and CBOR. Pure.

    sagemaker, logs     JSON
    sts, iam            Query
    monitoring          all three: boto3 has changed its mind over the years

A request says by its headers which protocol it is, and has its answer in the same one.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import cbor2
import msgspec

from herringbone.s3.front.documents import Member, document
from herringbone.s3.front.refusals import HttpRequest
from herringbone.serve.errors import ApiError, invalid

# The prefix of X-Amz-Target, or of a path of CBOR's, of each service that is called so.
TARGETS = {"SageMaker": "sagemaker", "Logs_20140328": "logs", "GraniteServiceVersion20100801": "monitoring"}
_QUERY_SERVICES = ("sts", "iam", "monitoring")
_FORM = "application/x-www-form-urlencoded"
_CBOR_PATH = re.compile(r"/service/([^/]{1,100})/operation/([^/]{1,100})")
_CBOR = {"smithy-protocol": "rpc-v2-cbor"}
_MAX_MEMBERS = 500


class Protocol(enum.Enum):
    """A protocol; its value is the media type of its answers."""

    JSON = "application/x-amz-json-1.1"
    QUERY = "text/xml"
    CBOR = "application/cbor"


class Asked(NamedTuple):
    """The prefix of the service that a request names, "" where it has none, and the operation."""

    prefix: str
    name: str


def protocol_of(request: HttpRequest) -> Protocol:
    """Return the protocol of a request; JSON for one that none of them is."""
    if request.header("smithy-protocol") == _CBOR["smithy-protocol"]:
        return Protocol.CBOR
    return Protocol.QUERY if request.header("content-type").startswith(_FORM) else Protocol.JSON


def is_of(asked: Asked, protocol: Protocol, service: str) -> bool:
    """Say whether a service is called so."""
    return service in _QUERY_SERVICES if protocol is Protocol.QUERY else TARGETS.get(asked.prefix) == service


def asked_of(protocol: Protocol, request: HttpRequest, body: bytes) -> Asked:
    """Return the service and the operation that a request names, "" for what it does not."""
    if protocol is Protocol.CBOR:
        found = _CBOR_PATH.fullmatch(request.path)
        return Asked(*found.groups()) if found else Asked("", "")
    if protocol is Protocol.QUERY:
        return Asked("", parse_form(body).get("Action", "")[:100])
    prefix, _, name = request.header("x-amz-target").partition(".")
    return Asked(prefix[:100], name[:100])


def read_members(protocol: Protocol, body: bytes, shape: Any) -> dict[str, Any]:
    """Return the members of a request; `shape` is botocore's input shape. Raises `ApiError`."""
    if protocol is Protocol.QUERY:
        form = {name: text for name, text in parse_form(body).items() if name not in ("Action", "Version")}
        return {name: _of_form(form, name, _below(shape, name)) for name in dict.fromkeys(map(_first, form))}
    try:
        if protocol is Protocol.CBOR:
            members = cbor2.loads(body) if body else {}
        else:
            members = msgspec.json.decode(body or b"{}")
    except (cbor2.CBORDecodeError, ValueError, RecursionError) as error:
        raise ApiError("SerializationException", f"the body is no {protocol.name}: {error}") from None
    if not isinstance(members, dict):
        raise ApiError("SerializationException", f"the body must be an object of {protocol.name}")
    return members


def parse_form(body: bytes) -> dict[str, str]:
    """Return the members of a form. Raises `ApiError` for one that is no form.

    >>> parse_form(b"Action=GetCallerIdentity&Version=2011-06-15")["Action"]
    'GetCallerIdentity'
    """
    try:
        return dict(parse_qsl(body.decode(), strict_parsing=True, max_num_fields=_MAX_MEMBERS))
    except ValueError:
        raise invalid("the body is no form") from None


def answer(protocol: Protocol, operation: Any, members: Mapping[str, Any], request_id: str) -> bytes:
    """Return an answer as bytes; `operation` is botocore's model of it."""
    if protocol is Protocol.QUERY:
        result = _elements(members, operation.output_shape)
        parts: list[Member] = [(f"{operation.name}Result", result), ("ResponseMetadata", [("RequestId", request_id)])]
        return document(f"{operation.name}Response", parts, namespace=operation.service_model.metadata["xmlNamespace"])
    if protocol is Protocol.CBOR:
        return _write_cbor(_with_times(members, operation.output_shape))
    return msgspec.json.encode(members)


def error(protocol: Protocol, failure: ApiError, request_id: str) -> bytes:
    """Return an error as bytes."""
    if protocol is Protocol.QUERY:
        members: list[Member] = [("Type", "Sender"), ("Code", failure.code), ("Message", failure.message)]
        return document("ErrorResponse", [("Error", members), ("RequestId", request_id)], namespace="")
    told = {"__type": failure.code, "message": failure.message}
    return _write_cbor(told) if protocol is Protocol.CBOR else msgspec.json.encode(told)


def headers(protocol: Protocol, request_id: str) -> dict[str, str]:
    """Return the headers of an answer or an error."""
    more = _CBOR if protocol is Protocol.CBOR else {}
    return {"x-amzn-requestid": request_id, "content-type": protocol.value, "cache-control": "no-store", **more}


# Query


def _first(path: str) -> str:
    return path.partition(".")[0]


def _below(shape: Any, name: str) -> Any:
    """Return the shape of a member; None for one that the shape does not have, which is refused later."""
    return getattr(shape, "members", {}).get(name)


def _of_form(form: Mapping[str, str], path: str, shape: Any) -> Any:
    """Return the value at a path of a form, such as `Dimensions`, whose entries are `Dimensions.member.1.Name`."""
    kind = getattr(shape, "type_name", "string")
    inside = {name.removeprefix(f"{path}."): text for name, text in form.items() if name.startswith(f"{path}.")}
    if kind == "structure":
        return {name: _of_form(inside, name, _below(shape, name)) for name in dict.fromkeys(map(_first, inside))}
    if kind == "list":
        entries = {name.removeprefix("member."): text for name, text in inside.items()}
        return [_of_form(entries, number, shape.member) for number in dict.fromkeys(map(_first, entries))]
    text = form.get(path, "")
    try:
        if kind == "boolean":
            return {"true": True, "false": False}[text]
        return {"integer": int, "long": int, "float": float, "double": float}.get(kind, str)(text)
    except (KeyError, ValueError):
        # Its type is checked like that of every member, and the refusal names it.
        return text


def _elements(value: Any, shape: Any) -> list[Member]:
    """Return the members of a structure as elements of XML."""
    return [(name, _element(member, _below(shape, name))) for name, member in value.items()]


def _element(value: Any, shape: Any) -> Any:
    if shape.type_name == "structure":
        return _elements(value, shape)
    if shape.type_name == "list":
        return [("member", _element(each, shape.member)) for each in value]
    return _time(value).isoformat() if shape.type_name == "timestamp" else value


# CBOR


def _with_times(value: Any, shape: Any) -> Any:
    """Return an answer whose times are no numbers, which CBOR tells apart."""
    if shape.type_name == "structure":
        return {name: _with_times(member, shape.members[name]) for name, member in value.items()}
    if shape.type_name == "list":
        return [_with_times(each, shape.member) for each in value]
    return _time(value) if shape.type_name == "timestamp" else value


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _write_cbor(members: Mapping[str, Any]) -> bytes:
    return cbor2.dumps(members, datetime_as_timestamp=True)
