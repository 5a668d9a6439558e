"""botocore signs, we verify; every changed part of a request is refused."""

import hashlib
import hmac
import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from herringbone.s3.front.refusals import HttpRequest
from herringbone.serve.errors import ApiError
from herringbone.serve.signing.signature import check, parse

botocore_auth = pytest.importorskip("botocore.auth")
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.credentials import Credentials  # noqa: E402

SECRET = "a secret + / ="  # noqa: S105
KEY = Credentials("HBAKADA", SECRET)
BODY = b'{"TrainingJobName": "digits-1"}'
HASH = hashlib.sha256(BODY).hexdigest()


def sent(signer, url="http://127.0.0.1:8080/", *, method="POST", headers=None):
    """Return the request that botocore's signer makes."""
    request = AWSRequest(method, url, data=BODY if method == "POST" else b"", headers=headers or {})
    signer.add_auth(request)
    prepared = request.prepare()
    parts = urlsplit(prepared.url)
    pairs = [(name.lower(), value) for name, value in prepared.headers.items()]
    return HttpRequest(method, parts.path, parts.query, [("host", parts.netloc), *pairs])


def json_call(**headers):
    target = {"X-Amz-Target": "SageMaker.DescribeTrainingJob", "Content-Type": "application/x-amz-json-1.1", **headers}
    return sent(botocore_auth.SigV4Auth(KEY, "sagemaker", "us-east-1"), headers=target)


def verify(request, payload=HASH, *, secret=SECRET, at=0.0):
    return check(parse(request), request, secret=secret, payload_hash=payload, now=time.time() + at)


@pytest.mark.parametrize("headers", [{}, {"X-Amz-Security-Token": "t"}, {"Amz-Sdk-Invocation-Id": "  a   b "}], ids=str)
def test_what_botocore_signs_is_right(headers):
    verify(json_call(**headers))


@pytest.mark.parametrize(
    "url",
    [
        "http://h/mine/a%20b/c%2Bd/%C3%BC",
        "http://h/mine/?list-type=2&prefix=a%2Fb%20c&delimiter=",
        "http://h/mine/x?uploadId=a%2Bb&partNumber=1&acl",
        "http://h/mine//double/./dots/..",
    ],
)
def test_s3_urls(url):
    request = sent(botocore_auth.S3SigV4Auth(KEY, "s3", "us-east-1"), url, method="GET")
    verify(request, request.header("x-amz-content-sha256"))


def test_presigned_url():
    signer = botocore_auth.S3SigV4QueryAuth(KEY, "s3", "us-east-1", expires=60)
    request = sent(signer, "http://h/mine/a%20b?versionId=1", method="GET")
    verify(request, "UNSIGNED-PAYLOAD", at=59)
    with pytest.raises(ApiError, match="expired"):
        verify(request, "UNSIGNED-PAYLOAD", at=62)
    with pytest.raises(ApiError, match="does not match"):
        verify(replace(request, path="/mine/other"), "UNSIGNED-PAYLOAD")
    with pytest.raises(ApiError, match="at most 604800"):
        parse(replace(request, query=request.query.replace("Expires=60", "Expires=604801")))


def by_bytes(value: bytes, signed: bytes) -> HttpRequest:
    """Return a request whose client signs the bytes of a header, as those of Go, Rust and Java do."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names, scope = "host;x-amz-date;x-amz-meta-a", f"{stamp[:8]}/eu-west-1/s3/aws4_request"
    head = f"PUT\n/mine/a\nx=%FF\nhost:h\nx-amz-date:{stamp}\nx-amz-meta-a:".encode()
    digest = hashlib.sha256(head + signed + f"\n\n{names}\n{HASH}".encode()).hexdigest()
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()
    value_of = f"AWS4-HMAC-SHA256 Credential=HBAKADA/{scope}, SignedHeaders={names}, Signature={signature}"
    headers = [(b"host", b"h"), (b"x-amz-date", stamp.encode()), (b"x-amz-meta-a", value)]
    headers.append((b"authorization", value_of.encode()))
    scope_of_asgi = {"method": "PUT", "path": "/mine/a", "query_string": b"x=%FF", "headers": headers}
    return HttpRequest.of_scope(scope_of_asgi)


@pytest.mark.parametrize(
    "text", ["gr\u00fc\u00df", "a\u00a0b", "\u00a0a", "\u65e5\u672c", "a\u0085b", "a\u2028", "\u00e0"]
)
def test_headers_beyond_ascii_are_signed_as_bytes_or_as_botocores_text(text):
    verify(by_bytes(text.encode(), text.encode()))
    verify(by_bytes(b"  a   " + text.encode(), b"a " + text.encode()))
    with pytest.raises(ApiError, match="does not match"):
        verify(by_bytes(text.encode(), b"another"))
    if max(text) <= "\xff":
        verify(by_bytes(text.encode("latin-1"), text.encode("latin-1")))
        verify(json_call(**{"X-Amz-Meta-A": text}))


@pytest.mark.parametrize("name", ["x-amz-copy-source", "x-amz-meta-a", "x-amz-acl"])
def test_whoever_has_a_presigned_url_adds_no_header_of_amazons(name):
    signer = botocore_auth.S3SigV4QueryAuth(KEY, "s3", "us-east-1", expires=60)
    request = sent(signer, "http://h/mine/mine", method="PUT")
    verify(request, "UNSIGNED-PAYLOAD")
    with pytest.raises(ApiError, match=f"must name the headers that are sent: {name}"):
        verify(replace(request, headers=[*request.headers, (name, "/mine/of-another")]), "UNSIGNED-PAYLOAD")
    signed = sent(signer, "http://h/mine/mine", method="PUT", headers={name: "/mine/x"})
    verify(signed, "UNSIGNED-PAYLOAD")


def test_only_calls_of_s3_are_presigned():
    signer = botocore_auth.SigV4QueryAuth(KEY, "sagemaker", "us-east-1", expires=604_800)
    request = sent(signer, method="POST")
    with pytest.raises(ApiError, match="presigned URLs are of S3 alone"):
        verify(request)


def with_header(request, name, value):
    return replace(request, headers=[(key, value if key == name else old) for key, old in request.headers])


def test_every_changed_part_is_refused():
    request = json_call()
    changed = {
        "method": replace(request, method="GET"),
        "path": replace(request, path="/x"),
        "query": replace(request, query="Action=x"),
        "target": with_header(request, "x-amz-target", "SageMaker.DeleteTrainingJob"),
        "host": with_header(request, "host", "elsewhere"),
        "signature": with_header(request, "authorization", request.header("authorization")[:-64] + "0" * 64),
        "region": with_header(request, "authorization", request.header("authorization").replace("us-east", "eu-west")),
    }
    for name, other in changed.items():
        with pytest.raises(ApiError) as caught:
            verify(other)
        assert caught.value.code == "SignatureDoesNotMatch", name
    for arguments in ({"payload": hashlib.sha256(b"{}").hexdigest()}, {"secret": "another"}):
        with pytest.raises(ApiError, match="does not match"):
            verify(request, **arguments)


def test_a_header_of_amazons_must_be_signed():
    request = json_call()
    more = replace(request, headers=[*request.headers, ("x-amz-tagging", "x")])
    with pytest.raises(ApiError, match="x-amz-tagging"):
        verify(more)


@pytest.mark.parametrize("at", [301, -302])
def test_clocks_may_be_off_by_five_minutes(at):
    verify(json_call(), at=at - (5 if at > 0 else -5))
    with pytest.raises(ApiError) as caught:
        verify(json_call(), at=at)
    assert caught.value.code == "RequestExpired"


@pytest.mark.parametrize(
    ("credential", "code"),
    [
        ("a/b/c", "IncompleteSignature"),
        ("k/20260101/r/s/x", "IncompleteSignature"),
        # Without x-amz-date.
        ("k/20260101/r/s/aws4_request", "IncompleteSignature"),
    ],
)
def test_malformed_credentials(credential, code):
    value = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature={'0' * 64}"
    with pytest.raises(ApiError) as caught:
        parse(HttpRequest("POST", "/", "", [("host", "h"), ("authorization", value)]))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("value", "code"), [("", "MissingAuthenticationTokenException"), ("Basic YTpi", "IncompleteSignature")]
)
def test_other_ways_to_log_in(value, code):
    with pytest.raises(ApiError) as caught:
        parse(HttpRequest("POST", "/", "", [("host", "h"), ("authorization", value)]))
    assert caught.value.code == code
