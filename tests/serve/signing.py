"""Sign requests by hand, and send them to the application without a network."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from dataclasses import replace
from typing import Any

from herringbone.s3.front.refusals import HttpRequest
from herringbone.serve.app import Service
from herringbone.serve.signing.keys import AccessKey
from herringbone.serve.signing.signature import Claim, signing_key, string_to_sign

ADA = AccessKey(name="ada", key_id="HBAKADA", secret="a secret of ada's")  # noqa: S106
BOB = AccessKey(name="bob", key_id="HBAKBOB", secret="a secret of bob's")  # noqa: S106
ADMIN = AccessKey(name="admin", key_id="HBAKADMIN", secret="a secret of the admin's", sees_all=True)  # noqa: S106
TYPE = "application/x-amz-json-1.1"


class Keys:
    """A file of keys that is none."""

    def __init__(self, *keys: AccessKey) -> None:
        self._keys = {key.key_id: key for key in keys}

    def find(self, key_id: str) -> AccessKey | None:
        return self._keys.get(key_id)


def signed(
    key: AccessKey, target: str, body: bytes, *, now: float, service: str = "sagemaker", region: str = "us-east-1",
    content_type: str = TYPE, **headers: str,
) -> HttpRequest:  # fmt: skip
    """Return a signed POST request, as boto3 sends it."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    pairs = [("content-type", content_type), ("host", "127.0.0.1:1"), ("x-amz-date", stamp), ("x-amz-target", target)]
    claim = Claim(key.key_id, stamp[:8], region, service, int(now), tuple(name for name, _ in pairs), "")
    request = HttpRequest("POST", "/", "", pairs)
    text = string_to_sign(claim, request, hashlib.sha256(body).hexdigest())
    signature = hmac.new(signing_key(key.secret, claim), text.encode(), hashlib.sha256).hexdigest()
    names = ";".join(claim.signed_headers)
    value = f"AWS4-HMAC-SHA256 Credential={key.key_id}/{claim.scope}, SignedHeaders={names}, Signature={signature}"
    unsigned = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return replace(request, headers=[*pairs, ("authorization", value), *unsigned])


# One loop for all calls: its worker threads are started once.
LOOP = asyncio.new_event_loop()


def send(app: Service, request: HttpRequest, *parts: bytes) -> tuple[int, dict[str, Any]]:
    """Send a request, its body in parts, and return the status and the members of the answer."""
    return LOOP.run_until_complete(answer_to(app, request, *parts))


async def answer_to(app: Service, request: HttpRequest, *parts: bytes) -> tuple[int, dict[str, Any]]:
    """Do so in a loop that runs."""
    status, body = await sent_to(app, request, *parts)
    return status, json.loads(body)


async def sent_to(app: Service, request: HttpRequest, *parts: bytes) -> tuple[int, bytes]:
    """Send a request, its body in parts, and return the status and the body of the answer."""
    scope = {
        "type": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in request.headers],
        "client": ("127.0.0.1", 2),
    }
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def collect(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, collect)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
