"""Sign random requests with botocore: each is accepted, and with one byte changed refused. Without a network.

Usage: `.venv/bin/python -m tests.campaigns.signatures [--requests N] [--seed S]` from the root of the repository. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from herringbone.s3.front.chunks import SIGNED, Decoder
from herringbone.s3.front.refusals import HttpRequest, S3Error, Signer
from herringbone.serve.errors import ApiError
from herringbone.serve.signing.signature import check, parse

LETTERS = "abcXYZ019-._~ !\"#$%&'()*+,/:;<=>?@[\\]^`{|}\t\u00fc\u20ac\U0001f600\x01\x7f"
# The service takes times of five minutes, and S3 of fifteen.
NEAR_BORDER = (0, 0, 0, -290, 290)


def text_of(rng: random.Random, most: int = 12, letters: str = LETTERS) -> str:
    return "".join(rng.choices(letters, k=rng.randrange(most)))


def signed_request(rng: random.Random) -> tuple[HttpRequest, str, str, float]:
    """Return a request that botocore has signed, with its payload's hash, the secret, and the time of its arrival."""
    secret = text_of(rng, 40) + "s"
    key = Credentials("HBAK" + text_of(rng, 9, "ABC234"), secret, rng.choice((None, None, "token/+=")))
    method = rng.choice(("GET", "PUT", "POST", "DELETE", "HEAD"))
    is_s3, in_address = rng.random() < 0.7, rng.random() < 0.4
    # botocore makes a part of the address of a body that is presigned.
    has_body = method in ("PUT", "POST") and not (is_s3 and in_address)
    body = rng.randbytes(rng.randrange(40)) if has_body else b""
    # As botocore writes addresses; it signs those of others as they are, which AWS does not take.
    path = "/" + quote(text_of(rng, 20), safe="/~")
    names = [quote(text_of(rng, 6) + "n", safe="") for _ in range(rng.randrange(4))]
    query = (
        "&".join(f"{name}={quote(text_of(rng), safe='')}" for name in rng.choices(names, k=3) if names) if names else ""
    )
    headers = {f"x-amz-meta-{number}": text_of(rng, 9, "ab  \u00fc,;=:") for number in range(rng.randrange(4))}
    headers |= {"X-Amz-Target": "SageMaker.X", "Content-Type": " a  b "} if not is_s3 else {}
    request = AWSRequest(method, f"http://h:8080{path}" + (f"?{query}" if query else ""), data=body, headers=headers)
    digest = hashlib.sha256(body).hexdigest()
    if not is_s3:
        auth.SigV4Auth(key, rng.choice(("sagemaker", "logs", "sts")), "us-east-1").add_auth(request)
    elif in_address:
        auth.S3SigV4QueryAuth(key, "s3", "us-east-1", expires=600).add_auth(request)
        digest = "UNSIGNED-PAYLOAD"
    else:
        auth.S3SigV4Auth(key, "s3", "us-east-1").add_auth(request)
        digest = request.headers["X-Amz-Content-SHA256"]
    parts = urlsplit(request.url)
    pairs = [(name.lower(), value) for name, value in request.headers.items()]
    pairs += [] if any(name == "host" for name, _ in pairs) else [("host", parts.netloc)]
    scope = {
        "method": method,
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        # As the wire has them: the server takes spaces off both ends.
        "headers": [(name.encode(), _bytes(value).strip()) for name, value in pairs],
    }
    return HttpRequest.of_scope(scope), digest, secret, time.time() + rng.choice(NEAR_BORDER)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def mutated(rng: random.Random, request: HttpRequest) -> HttpRequest:
    """Return the request with one character of what was signed changed to one of another meaning."""

    def changed(text: str) -> str:
        place = rng.choice([place for place, letter in enumerate(text) if letter.isalnum()])
        # Not the other case alone: hex digits of both cases mean the same in an address.
        other = rng.choice([letter for letter in "0123456789bcdghjk" if letter != text[place].lower()])
        return text[:place] + other + text[place + 1 :]

    signed = parse(request).signed_headers
    headers = [place for place, (name, text) in enumerate(request.headers) if name in signed and _has_any(text)]
    kinds = ["method", *(["path"] if _has_any(request.path) else []), *(["query"] if _has_any(request.query) else [])]
    kind = rng.choice([*kinds, *(["headers"] if headers else [])])
    if kind == "method":
        return replace(request, method="PATCH")
    if kind == "headers":
        place = rng.choice(headers)
        name, text = request.headers[place]
        return replace(
            request, headers=[*request.headers[:place], (name, changed(text)), *request.headers[place + 1 :]]
        )
    return replace(request, **{kind: changed(getattr(request, kind))})


def _has_any(text: str) -> bool:
    return any(letter.isalnum() for letter in text)


def verify(request: HttpRequest, digest: str, secret: str, now: float) -> str:
    """Return "" for a request that is accepted, or the code of its refusal."""
    try:
        check(parse(request), request, secret=secret, payload_hash=digest, now=now)
    except ApiError as error:
        return error.code
    return ""


def chunked(rng: random.Random, *, wrong: bool) -> bool:
    """Report whether a body of signed chunks is accepted; with `wrong`, one byte of its content is changed."""
    import hmac

    signer = Signer("ada", rng.randbytes(32), "20260101/us-east-1/s3/aws4_request", "20260101T000000Z", "0" * 64)
    previous, body, empty = signer.signature, bytearray(), hashlib.sha256(b"").hexdigest()
    places: list[int] = []
    for content in [rng.randbytes(rng.randrange(1, 60)) for _ in range(rng.randrange(1, 4))] + [b""]:
        digest = hashlib.sha256(content).hexdigest()
        lines = ("AWS4-HMAC-SHA256-PAYLOAD", signer.stamp, signer.scope, previous, empty, digest)
        previous = hmac.digest(signer.key, "\n".join(lines).encode(), "sha256").hex()
        head = f"{len(content):x};chunk-signature={previous}\r\n".encode()
        places += range(len(body) + len(head), len(body) + len(head) + len(content))
        body += head + content + b"\r\n"
    if wrong:
        body[rng.choice(places)] ^= 1 << rng.randrange(8)
    decoder, cut = Decoder(SIGNED, signer), rng.randrange(len(body))
    try:
        for part in (body[:cut], body[cut:]):
            list(decoder.feed(bytes(part)))
        decoder.finish()
    except S3Error:
        return False
    return True


def campaign(*, requests: int, seed: int = 0) -> dict[str, Any]:
    """Return how many requests were tried, and those that were judged wrongly."""
    rng = random.Random(seed)
    wrong: list[str] = []
    for number in range(requests):
        if number % 10 == 0:
            if not chunked(rng, wrong=False) or chunked(rng, wrong=True):
                wrong.append(f"chunks {number}")
            continue
        request, digest, secret, now = signed_request(rng)
        if code := verify(request, digest, secret, now):
            wrong.append(f"refused: {code} {request}")
        if not verify(other := mutated(rng, request), digest, secret, now):
            wrong.append(f"accepted: {other} for {request}")
    return {"requests": requests, "wrong": len(wrong), "first": wrong[:5]}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=41)
    arguments = parser.parse_args()
    result = campaign(requests=arguments.requests, seed=arguments.seed)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
