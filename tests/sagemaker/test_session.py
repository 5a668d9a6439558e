"""Test `AwsSession`: credentials, region, and the translation of boto's errors."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from herringbone.aws.errors import translate_error
from herringbone.aws.session import AwsLocation, AwsSession
from herringbone.backends.sagemaker.creation import look_up
from herringbone_contract.errors import AwsAccessError, AwsCredentialsError, AwsError, AwsUnavailableError, OptionError
from tests.sagemaker.conftest import REGION

boto3 = pytest.importorskip("boto3", reason="the extra aws is not installed")
from botocore import exceptions as boto  # noqa: E402
from botocore.parsers import ResponseParserError  # noqa: E402

PEER_PYTHON = Path(__file__).parent.parent.parent / ".venv-peer" / "bin" / "python"


def client_error(code, message="", operation="CreateTrainingJob", status=400):
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return boto.ClientError(answer, operation)


@pytest.mark.parametrize(
    ("error", "error_class", "message"),
    [
        (boto.NoCredentialsError(), AwsCredentialsError, "no AWS credentials were found; log in with `aws sso login"),
        (boto.ProfileNotFound(profile="me"), AwsCredentialsError, r"\(me\) could not be found; `aws configure list"),
        (boto.SSOTokenLoadError(error_msg="x"), AwsCredentialsError, "the login to AWS has expired; .*--profile work`"),
        (boto.NoRegionError(), OptionError, "no AWS region is set; set AWS_DEFAULT_REGION"),
        (
            boto.EndpointConnectionError(endpoint_url="https://x"),
            AwsUnavailableError,
            "does not answer: .* check the network",
        ),
        (boto.ReadTimeoutError(endpoint_url="https://x"), AwsUnavailableError, "AWS does not answer"),
        (ResponseParserError("<html>"), AwsUnavailableError, "the answer does not come from AWS; check the proxy"),
        (client_error("ExpiredTokenException"), AwsCredentialsError, "the AWS credentials have expired; log in"),
        (client_error("UnrecognizedClientException"), AwsCredentialsError, "AWS does not know these credentials"),
        (
            client_error("400", "Bad Request", "HeadObject"),
            AwsCredentialsError,
            "most often because .* expired; log in",
        ),
        (client_error("403", "Forbidden", "HeadObject"), AwsAccessError, "denied; the caller needs .* s3:GetObject"),
        (
            client_error("AccessDeniedException", "User: a may not"),
            AwsAccessError,
            "User: a may not; .* CreateTrainingJob",
        ),
        (
            client_error("ThrottlingException", "Rate exceeded"),
            AwsUnavailableError,
            "cannot serve the request now .* try again later",
        ),
        (client_error("Strange", status=503), AwsUnavailableError, "cannot serve the request now"),
        (
            client_error("ResourceLimitExceeded", "0 Instances"),
            AwsError,
            "0 Instances; request a higher quota of SageMaker at",
        ),
        (client_error("ValidationException", "1 error"), AwsError, "ValidationException: 1 error$"),
    ],
)
def test_each_error_names_the_action_and_the_remedy(error, error_class, message):
    with pytest.raises(error_class, match=f"^to create job a: .*{message}") as caught:
        raise translate_error(error, "to create job a", profile="work")
    assert type(caught.value) is error_class
    response = getattr(error, "response", None)
    assert getattr(caught.value, "code", None) == (response["Error"]["Code"] if response else None)


def test_no_message_contains_a_credential():
    text = "The Canonical String should have been 'x-amz-security-token:PLANTED'"
    assert "PLANTED" not in str(translate_error(client_error("SignatureDoesNotMatch", text), "to ask"))
    process = boto.CredentialRetrievalError(provider="custom-process", error_msg="SecretAccessKey: PLANTED")
    assert "PLANTED" not in str(translate_error(process, "to ask"))
    assert "from custom-process" in str(translate_error(process, "to ask"))


def test_botos_search_finds_credentials_and_region(account):
    session = AwsSession.of(None)
    assert (session.region, session.account, session.profile) == (REGION, "123456789012", None)
    assert session.client("s3") is session.client("s3")
    assert session.location == AwsLocation.from_json(session.location.to_json())
    assert AwsSession.at(session.location).region == REGION


def test_a_session_of_the_user_is_used(account, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    session = AwsSession.of(boto3.Session("one", "two", region_name="us-west-2"))
    assert (session.region, session.client("s3").meta.region_name) == ("us-west-2", "us-west-2")
    session.renew()
    assert session._session().get_credentials().access_key == "one"  # a new session would not find explicit credentials


def test_a_session_of_the_peer_brings_its_bucket(account):
    peer_session = SimpleNamespace(
        boto_session=boto3.Session(region_name="us-west-2"), _default_bucket_name_override="mine"
    )
    session = AwsSession.of(peer_session)
    assert (session.region, session.default_bucket) == ("us-west-2", "mine")
    peer_session.default_bucket_prefix = "team/"
    assert AwsSession.of(peer_session).default_bucket == "mine/team"
    peer_session.local_mode = True
    with pytest.raises(OptionError, match="sagemaker_session: a LocalSession runs jobs on this machine"):
        AwsSession.of(peer_session)


def test_other_values_are_refused_by_name():
    with pytest.raises(OptionError, match=r"sagemaker_session: str is neither a boto3\.Session nor a sagemaker"):
        AwsSession.of("default")


@pytest.mark.peer
@pytest.mark.skipif(not PEER_PYTHON.exists(), reason="run tests/peer/setup first: the peer is 310 MB")
def test_the_released_peers_session_has_the_members_that_are_read():
    program = (
        "import boto3, sagemaker; s = sagemaker.Session(boto3.Session('a', 'b', region_name='us-west-2'),"
        " default_bucket='mine', default_bucket_prefix='team');"
        "print(s.boto_session.region_name, s._default_bucket_name_override, s.default_bucket_prefix, s.local_mode)"
    )
    output = subprocess.run([PEER_PYTHON, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.splitlines()[-1] == "us-west-2 mine team False"


def test_renew_reads_the_credentials_again(account, monkeypatch):
    session = AwsSession.of(None)
    before = session.client("sts")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert session.client("sts") is before
    session.renew()
    assert session._session().get_credentials().access_key == "another"


def test_missing_region_and_missing_credentials(account, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(OptionError, match=r"instance types ml\.\*: no AWS region is set"):
        AwsSession.of(None).client("sagemaker")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AwsCredentialsError, match="to find out whose AWS credentials these are: no AWS credentials"):
        AwsSession.of(None).account  # noqa: B018 - reading the property sends the request


def test_a_job_that_does_not_exist(account):
    assert look_up(AwsSession.of(None), "nobodys") is None


def test_an_endpoint_where_nothing_listens(account, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(AwsUnavailableError, match="to find job a in eu-central-1: AWS does not answer"):
        look_up(AwsSession.of(None), "a")
