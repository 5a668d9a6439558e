"""The door to boto3: whose credentials, and what its errors mean."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from herringbone.aws.errors import explain
from herringbone.aws.session import AwsSession, ServicePlace
from herringbone.backends.sagemaker.lookup import look_up
from herringbone_contract.errors import AwsAccessError, AwsCredentialsError, AwsError, AwsUnavailableError, OptionError
from tests.sagemaker.conftest import REGION

boto3 = pytest.importorskip("boto3", reason="the extra aws is not installed")
from botocore import exceptions as boto  # noqa: E402
from botocore.parsers import ResponseParserError  # noqa: E402

PEER_PYTHON = Path(__file__).parent.parent.parent / ".venv-peer" / "bin" / "python"


def refused(code, message="", operation="CreateTrainingJob", status=400):
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(answer, operation)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (boto.NoCredentialsError(), AwsCredentialsError, "no AWS credentials were found; log in with `aws sso login"),
        (boto.ProfileNotFound(profile="me"), AwsCredentialsError, r"\(me\) could not be found; `aws configure list"),
        (boto.SSOTokenLoadError(error_msg="x"), AwsCredentialsError, "the login to AWS has expired; .*--profile work`"),
        (boto.NoRegionError(), OptionError, "no AWS region is set; set AWS_DEFAULT_REGION"),
        (boto.EndpointConnectionError(endpoint_url="https://x"), AwsUnavailableError, "does not answer: .* look at"),
        (boto.ReadTimeoutError(endpoint_url="https://x"), AwsUnavailableError, "AWS does not answer"),
        (ResponseParserError("<html>"), AwsUnavailableError, "the answer is not AWS's; look whether a proxy"),
        (refused("ExpiredTokenException"), AwsCredentialsError, "the AWS credentials have expired; log in"),
        (refused("UnrecognizedClientException"), AwsCredentialsError, "AWS does not know these credentials"),
        (refused("400", "Bad Request", "HeadObject"), AwsCredentialsError, "most often because .* expired; log in"),
        (refused("403", "Forbidden", "HeadObject"), AwsAccessError, "denied; the caller needs .* s3:GetObject"),
        (refused("AccessDeniedException", "User: a may not"), AwsAccessError, "User: a may not; .* CreateTrainingJob"),
        (refused("ThrottlingException", "Rate exceeded"), AwsUnavailableError, "asks to be asked later .* try again"),
        (refused("Strange", status=503), AwsUnavailableError, "asked later"),
        (refused("ResourceLimitExceeded", "0 Instances"), AwsError, "0 Instances; a quota is raised at"),
        (refused("ValidationException", "1 error"), AwsError, "ValidationException: 1 error$"),
    ],
)
def test_each_error_says_what_was_asked_and_what_to_do(error, kind, says):
    with pytest.raises(kind, match=f"^to create job a: .*{says}") as caught:
        raise explain(error, "to create job a", profile="work")
    assert type(caught.value) is kind
    response = getattr(error, "response", None)
    assert getattr(caught.value, "code", None) == (response["Error"]["Code"] if response else None)


def test_no_message_holds_a_credential():
    told = "The Canonical String should have been 'x-amz-security-token:PLANTED'"
    assert "PLANTED" not in str(explain(refused("SignatureDoesNotMatch", told), "to ask"))
    process = boto.CredentialRetrievalError(provider="custom-process", error_msg="SecretAccessKey: PLANTED")
    assert "PLANTED" not in str(explain(process, "to ask"))
    assert "from custom-process" in str(explain(process, "to ask"))


def test_the_chain_of_boto_finds_credentials_and_region(account):
    session = AwsSession.of(None)
    assert (session.region, session.account, session.profile) == (REGION, "123456789012", None)
    assert session.client("s3") is session.client("s3")
    assert session.place == ServicePlace.from_json(session.place.to_json())
    assert AwsSession.at(session.place).region == REGION


def test_a_session_of_the_users_is_used(account, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    session = AwsSession.of(boto3.Session("one", "two", region_name="us-west-2"))
    assert (session.region, session.client("s3").meta.region_name) == ("us-west-2", "us-west-2")
    session.renew()
    assert session._session().get_credentials().access_key == "one"  # there is nowhere to find them again


def test_a_session_of_the_peers_brings_its_bucket(account):
    theirs = SimpleNamespace(boto_session=boto3.Session(region_name="us-west-2"), _default_bucket_name_override="mine")
    session = AwsSession.of(theirs)
    assert (session.region, session.default_bucket) == ("us-west-2", "mine")
    theirs.default_bucket_prefix = "team/"
    assert AwsSession.of(theirs).default_bucket == "mine/team"
    theirs.local_mode = True
    with pytest.raises(OptionError, match="sagemaker_session: a LocalSession runs jobs on this machine"):
        AwsSession.of(theirs)


def test_anything_else_is_refused_by_name():
    with pytest.raises(OptionError, match=r"sagemaker_session: str is neither a boto3\.Session nor a sagemaker"):
        AwsSession.of("default")


@pytest.mark.peer
@pytest.mark.skipif(not PEER_PYTHON.exists(), reason="run tests/peer/setup first: the peer is 310 MB")
def test_the_released_peers_session_has_what_is_read_of_it():
    program = (
        "import boto3, sagemaker; s = sagemaker.Session(boto3.Session('a', 'b', region_name='us-west-2'),"
        " default_bucket='mine', default_bucket_prefix='team');"
        "print(s.boto_session.region_name, s._default_bucket_name_override, s.default_bucket_prefix, s.local_mode)"
    )
    said = subprocess.run([PEER_PYTHON, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.splitlines()[-1] == "us-west-2 mine team False"


def test_renewing_reads_the_credentials_anew(account, monkeypatch):
    session = AwsSession.of(None)
    before = session.client("sts")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert session.client("sts") is before
    session.renew()
    assert session._session().get_credentials().access_key == "another"


def test_without_a_region_or_credentials(account, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(OptionError, match=r"instance types ml\.\*: no AWS region is set"):
        AwsSession.of(None).client("sagemaker")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AwsCredentialsError, match="to find out whose AWS credentials these are: no AWS credentials"):
        AwsSession.of(None).account  # noqa: B018 - the question is what counts


def test_a_job_that_the_service_does_not_have(account):
    assert look_up(AwsSession.of(None), "nobodys") is None


def test_an_address_where_nobody_listens(account, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(AwsUnavailableError, match="to find job a in eu-central-1: AWS does not answer"):
        look_up(AwsSession.of(None), "a")
