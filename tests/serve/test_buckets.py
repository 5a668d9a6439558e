"""The front of S3 behind the service's keys, without a network."""

import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette")
botocore_auth = pytest.importorskip("botocore.auth")
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.credentials import Credentials  # noqa: E402

from herringbone.s3.front.chunks import SIGNED  # noqa: E402
from herringbone.s3.front.refusals import HttpRequest, S3Error  # noqa: E402
from herringbone.serve.app import Verifier  # noqa: E402
from herringbone.serve.buckets import signer_of  # noqa: E402
from herringbone.serve.settings import Settings  # noqa: E402
from tests.serve.signing import ADA, Keys  # noqa: E402

ACCOUNT = "000000000000"


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def request(
    signer=botocore_auth.S3SigV4Auth, headers=None, *, method="GET", region="us-east-1", secret=ADA.secret, **options
):
    """Return a signed request for an object, as botocore makes it."""
    call = AWSRequest(method, "http://h/mine/a%20b", headers=headers or {})
    signer(Credentials(ADA.key_id, secret), "s3", region, **options).add_auth(call)
    prepared = call.prepare()
    parts = urlsplit(prepared.url)
    pairs = [(name.lower(), value) for name, value in prepared.headers.items()]
    return HttpRequest(method, parts.path, parts.query, [("host", parts.netloc), *pairs])


def presigned(**options):
    return request(botocore_auth.S3SigV4QueryAuth, expires=60, **options)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def verify(clock):
    settings = Settings(backend="local", account=ACCOUNT, s3_calls_per_second=1)
    return signer_of(Verifier(Keys(ADA), settings, clock=clock), ACCOUNT)


def test_the_signer_continues_the_signatures_of_chunks(verify):
    signer = verify(signed := request(headers={"X-Amz-Content-Sha256": SIGNED}))
    assert signer.identity == "ada"
    assert signer.stamp == signed.header("x-amz-date")
    assert signer.scope == f"{signer.stamp[:8]}/us-east-1/s3/aws4_request"
    assert signer.signature in signed.header("authorization")
    assert verify(presigned()).identity == "ada"


def test_clocks_may_be_off_by_fifteen_minutes(verify, clock):
    signed = request()
    clock.now += 890
    verify(signed)
    clock.now += 20
    assert code(verify, signed) == ("RequestTimeTooSkewed", 403)


def test_an_address_takes_no_header_that_was_not_signed(verify):
    """A presigned address to write one object must not copy another one."""
    signed = presigned()
    for name in ("x-amz-copy-source", "x-amz-metadata-directive"):
        assert code(verify, with_header(signed, name, "/mine/secret")) == ("AuthorizationHeaderMalformed", 400)
    verify(with_header(signed, "x-amz-content-sha256", "UNSIGNED-PAYLOAD"))


def test_refusals_have_the_codes_of_s3(verify):
    owner = {"X-Amz-Expected-Bucket-Owner": "111111111111"}
    unsigned = HttpRequest("GET", "/mine/a", "", [("host", "h")])
    assert code(verify, unsigned) == ("AccessDenied", 403)
    assert code(verify, request(secret="other")) == ("SignatureDoesNotMatch", 403)  # noqa: S106
    assert code(verify, request(region="eu-west-1")) == ("AuthorizationHeaderMalformed", 400)
    assert code(verify, request(headers=owner)) == ("AccessDenied", 403)
    assert code(verify, request(botocore_auth.SigV4Auth)) == ("InvalidRequest", 400)
    old = replace(unsigned, query="AWSAccessKeyId=HBAKADA&Signature=x&Expires=9")
    with pytest.raises(S3Error, match='signature_version="s3v4"'):
        verify(old)


def test_each_key_has_its_rate(verify, clock):
    for _ in range(10):
        verify(request())
    assert code(verify, request()) == ("SlowDown", 503)
    clock.now += 1
    verify(request())


def code(verify, signed):
    with pytest.raises(S3Error) as caught:
        verify(signed)
    return caught.value.code, caught.value.status


def with_header(signed, name, value):
    return replace(signed, headers=[*signed.headers, (name, value)])


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_a_write_that_comes_again_is_noted(verify, clock, method):
    write, address = request(method=method), presigned(method=method)
    assert [verify(each).repeats for each in (write, write, address, address)] == [False, True, False, False]
    clock.now += 890
    assert verify(write).repeats


def test_a_write_that_was_signed_before_the_service_started_may_have_come_before(clock):
    write, read = request(method="PUT"), request()
    clock.now += 2
    verify = signer_of(Verifier(Keys(ADA), Settings(backend="local", account=ACCOUNT), clock=clock), ACCOUNT)
    assert verify(write).repeats
    assert not verify(read).repeats
