"""The SDK's only module that imports boto3: sessions, clients, and the translation of boto's errors.

A `boto3.Session`, the `sagemaker.Session` of AWS's SDK, or None  ->  `AwsSession`  ->  one client per service
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from herringbone.aws.credentials import problem_of_files
from herringbone.aws.errors import no_region_message, translate_error
from herringbone.aws.service_models import shared_loader
from herringbone_contract.errors import AwsCredentialsError, OptionError, UnsupportedError

_Answer = TypeVar("_Answer")

# boto's mode `standard` backs off exponentially with jitter, and retries only errors that a retry can fix.
_ATTEMPTS = 5
# A server of one's own needs no region, but a client does.
_ANY_REGION = "us-east-1"
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
# Credential sources that boto reads once; a new session reads them again, after a new login for instance. All other
# sources either renew themselves, or exist only in the session that the user built and a new session would lose them.
_READ_ONCE = frozenset({"env", "shared-credentials-file", "config-file", "sso"})
# Credentials from these sources do not come from a profile, even where AWS_PROFILE is set.
_WITHOUT_PROFILE = frozenset({"env", "explicit", "iam-role", "container-role", "assume-role-with-web-identity"})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The identity behind the credentials: the account, and the ARN of the user or of the assumed role."""

    account: str
    arn: str


class AwsLocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Region, account and profile with which another process reaches a job; the index keeps them in `service`.

    >>> AwsLocation.from_json('{"region": "eu-west-1", "account": "123456789012"}').region
    'eu-west-1'
    """

    region: str
    account: str
    profile: str | None = None

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> AwsLocation:
        return msgspec.json.decode(text, type=cls)


class Access(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session for another process of this user: credentials, or None where that process finds them by itself.

    `endpoint` is the address of a server of S3's protocol, None for AWS's own or the one that the process finds.

    It travels through pipes alone, because the secret is in it.
    """

    region: str | None = None
    profile: str | None = None
    key: str | None = None
    secret: str | None = None
    token: str | None = None
    endpoint: str | None = None


class AwsSession:
    """Clients of AWS's services, with the credentials and the region that the user chose.

    >>> session = AwsSession.of(None)                                        # doctest: +SKIP
    >>> with session.explain_errors("to find job digits-1"):                 # doctest: +SKIP
    ...     session.client("sagemaker").describe_training_job(TrainingJobName="digits-1")

    The session sends no request before a caller needs its answer. Several threads may share a session. Raises
    `UnsupportedError` where boto3 is not installed, `OptionError` where no region is set, and `AwsError` or a subclass
    inside `explain_errors`.
    """

    def __init__(
        self, boto: Any = None, *, region: str | None = None, profile: str | None = None, attempts: int = _ATTEMPTS
    ) -> None:
        """Take a `boto3.Session`, or find credentials as boto3 does: variables, profile, container, machine.

        `attempts` limits how often one request is sent while AWS does not answer or is too busy.
        """
        self._given_boto = boto
        self._region = region
        self._profile = profile
        self._attempts = attempts
        # Of S3 alone; None where boto's own settings decide.
        self._endpoint: str | None = None
        # Guards the members below. Reentrant, because `caller` and `client` call other methods that take it.
        self._lock = threading.RLock()
        self._clients: dict[tuple[str, str | None], Any] = {}
        self._boto: Any = None
        self._caller: Caller | None = None
        self._default_bucket: str | None = None

    @classmethod
    def of(cls, value: object) -> AwsSession:
        """Return the session for the option `sagemaker_session`.

        None means boto3's own search for credentials. From a `sagemaker.Session` of AWS's SDK this method takes the
        `boto_session` and the default bucket with its prefix. Raises `OptionError` for any other value.
        """
        if value is None:
            return cls()
        if isinstance(value, _boto3().Session):
            return cls(value)
        boto = getattr(value, "boto_session", None)
        if not isinstance(boto, _boto3().Session):
            raise OptionError(
                f"sagemaker_session: {type(value).__name__} is neither a boto3.Session nor a sagemaker.Session; leave "
                "it out to have boto3 find credentials and region"
            )
        if getattr(value, "local_mode", False):
            raise OptionError(
                "sagemaker_session: a LocalSession runs jobs on this machine, and instance types ml.* run at AWS; give "
                "instance_type='local', or a sagemaker.Session"
            )
        session = cls(boto)
        # Read the private members: the public `default_bucket()` would create the bucket before all checks have passed.
        bucket = getattr(value, "_default_bucket_name_override", None) or getattr(value, "_default_bucket", None)
        prefix = getattr(value, "default_bucket_prefix", None)
        if prefix and not bucket:
            raise OptionError("sagemaker_session: default_bucket_prefix needs default_bucket next to it")
        session._default_bucket = f"{bucket}/{prefix.strip('/')}" if prefix else bucket
        return session

    @classmethod
    def at(cls, location: AwsLocation) -> AwsSession:
        """Return a session for a job that another process submitted."""
        return cls(region=location.region, profile=location.profile)

    @classmethod
    def by(cls, access: Access) -> AwsSession:
        """Return the session that another process handed over."""
        if access.key is None:
            return cls(region=access.region, profile=access.profile)
        session = cls(
            _boto3().Session(
                aws_access_key_id=access.key,
                aws_secret_access_key=access.secret,
                aws_session_token=access.token,
                region_name=access.region,
            )
        )
        session._endpoint = access.endpoint
        return session

    @property
    def access(self) -> Access:
        """Credentials and region with which another process acts as this session does.

        Raises `AwsCredentialsError` without credentials.
        """
        region = self._region or self._session().region_name
        if self._given_boto is None:
            # That process searches as this one did, and can renew what it finds.
            return Access(region=region, profile=self._profile)
        with self.explain_errors("to hand the AWS credentials on"):
            credentials = self._session().get_credentials()
            if credentials is None:
                raise AwsCredentialsError(
                    "sagemaker_session: it has no credentials; log in, and make the session again"
                )
            if credentials.method in _READ_ONCE - {"env"} and _profile_of(self._session()) is not None:
                return Access(region=region, profile=_profile_of(self._session()))
            frozen = credentials.get_frozen_credentials()
        return Access(region=region, key=frozen.access_key, secret=frozen.secret_key, token=frozen.token)

    @property
    def portable_access(self) -> Access:
        """Credentials, region and server of S3 for a process of another machine, which has none of this one's files.

        Raises `AwsCredentialsError` without credentials.
        """
        with self.explain_errors("to hand the AWS credentials on"):
            credentials = self._session().get_credentials()
            if credentials is None:
                raise AwsCredentialsError("no AWS credentials were found, which machines need to write to S3; log in")
            frozen = credentials.get_frozen_credentials()
            endpoint = str(self.client("s3", region=self.access_region or _ANY_REGION).meta.endpoint_url)
        is_of_aws = (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        return Access(
            region=self.access_region,
            key=frozen.access_key,
            secret=frozen.secret_key,
            token=frozen.token,
            endpoint=None if is_of_aws else endpoint,
        )

    @property
    def access_region(self) -> str | None:
        """The region of the user, None where none is set."""
        region: str | None = self._region or self._session().region_name
        return region

    @property
    def source(self) -> str | None:
        """The name of boto's way to the credentials, such as "env" or "iam-role"; None without credentials."""
        with self.explain_errors("to find the AWS credentials"):
            credentials = self._session().get_credentials()
        return None if credentials is None else str(credentials.method)

    @property
    def default_bucket(self) -> str | None:
        """The default bucket (and prefix) of the user's own session; None where the session names none."""
        return self._default_bucket

    @property
    def loader(self) -> Any:
        """The loader of service models that this session's clients use; reading it creates no session."""
        if self._given_boto is None:
            return shared_loader()
        return self._given_boto._session.get_component("data_loader")

    @property
    def boto(self) -> Any:
        """The `boto3.Session` itself, for the option `sagemaker_session` of an estimator in the same account."""
        return self._session()

    @property
    def region(self) -> str:
        region: str | None = self._region or self._session().region_name
        if region is None:
            raise OptionError(no_region_message("instance types ml.*"))
        return region

    @property
    def profile(self) -> str | None:
        """The AWS profile that the credentials come from; None where they come from elsewhere."""
        with self.explain_errors("to find the AWS credentials"):
            credentials = self._session().get_credentials()
        if credentials is None or credentials.method in _WITHOUT_PROFILE:
            return self._profile
        return _profile_of(self._session())

    @property
    def caller(self) -> Caller:
        """The identity behind the credentials; the first access sends one request to STS."""
        with self._lock:
            if self._caller is None:
                with self.explain_errors("to find out whose AWS credentials these are"):
                    identity = self.client("sts").get_caller_identity()
                self._caller = Caller(account=identity["Account"], arn=identity["Arn"])
            return self._caller

    @property
    def account(self) -> str:
        return self.caller.account

    @property
    def location(self) -> AwsLocation:
        """The location under which another process finds a job that this session submits."""
        return AwsLocation(region=self.region, account=self.account, profile=self.profile)

    def client(self, service: str, *, region: str | None = None) -> Any:
        """Return boto3's client of a service; repeated calls return the same client.

        `region` overrides the session's region.
        """
        from botocore.config import Config

        # Threads may share boto3's clients, but only one thread at a time may create a client from a session.
        with self._lock:
            if (service, region) not in self._clients:
                config = Config(
                    retries={"mode": "standard", "total_max_attempts": self._attempts},
                    connect_timeout=_CONNECT_SECONDS,
                    read_timeout=_READ_SECONDS,
                    user_agent_extra="herringbone",
                )
                with self.explain_errors(f"to reach {service}"):
                    self._clients[service, region] = self._session().client(
                        service,
                        region_name=region or self.region,
                        endpoint_url=self._endpoint if service == "s3" else None,
                        config=config,
                    )
            return self._clients[service, region]

    @staticmethod
    def transfer_config(*, part_bytes: int) -> Any:
        """Return boto3's settings to transfer large objects in parts of `part_bytes`."""
        from boto3.s3.transfer import TransferConfig

        return TransferConfig(multipart_threshold=part_bytes, multipart_chunksize=part_bytes)

    def renew(self) -> None:
        """Forget clients and credentials, so that the next request reads the credentials again."""
        with self._lock:
            self._clients.clear()
            self._caller = None
            boto = self._given_boto
            if boto is None:
                self._boto = None
            elif (credentials := boto.get_credentials()) is None or credentials.method in _READ_ONCE:
                self._boto = _boto3().Session(region_name=boto.region_name, profile_name=_profile_of(boto))

    def retry_with_new_credentials(self, request: Callable[[], _Answer]) -> _Answer:
        """Call `request`; if the credentials are no longer valid, read them again and retry once.

        >>> session.retry_with_new_credentials(lambda: look_up(session, "digits-1"))       # doctest: +SKIP

        A job may run longer than a login lasts. Raises `AwsCredentialsError` until somebody has logged in again.
        """
        try:
            return request()
        except AwsCredentialsError:
            self.renew()
            return request()

    @contextmanager
    def explain_errors(self, action: str) -> Iterator[None]:
        """Translate boto's errors; `action` completes the message, for example "to create job digits-1"."""
        # Imported late, like all of boto: users without the extra `aws` must be able to import this module. boto3 comes
        # first, because its absence has a message.
        _boto3()
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except (Boto3Error, BotoCoreError, ClientError, ResponseParserError) as error:
            # `from None`: the text of the cause may repeat the session's token, and a traceback would print it.
            files = problem_of_files(os.environ)
            raise translate_error(error, action, profile=self._login_profile(), files=files) from None

    def _session(self) -> Any:
        with self._lock:
            if self._boto is None:
                with self.explain_errors("to start a session with AWS"):
                    self._boto = self._given_boto or self._search_session()
            return self._boto

    def _search_session(self) -> Any:
        """Return a session with the credentials that boto3 finds."""
        boto3 = _boto3()
        from botocore.session import Session

        core_session = Session()
        core_session.register_component("data_loader", shared_loader())
        return boto3.Session(region_name=self._region, profile_name=self._profile, botocore_session=core_session)

    def _login_profile(self) -> str | None:
        # Error messages ask for the profile, so this method must not create a session: that could raise again.
        session = self._boto or self._given_boto
        return (self._profile or os.environ.get("AWS_PROFILE")) if session is None else _profile_of(session)


def _boto3() -> Any:
    try:
        import boto3
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "AWS (instance types ml.*, s3:// addresses and ECR) needs boto3; install it with: pip install boto3"
        ) from error
    return boto3


def _profile_of(session: Any) -> str | None:
    name: str = session.profile_name
    return None if name == "default" else name
