"""The one door to boto3: whose credentials, which region, and what it means when AWS does not do what it is asked.

`boto3.Session`, the peer's `sagemaker.Session` or nothing -> AwsSession -> a client for each service
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from herringbone.aws.errors import explain, no_region
from herringbone.aws.service_models import shared_loader
from herringbone_contract.errors import OptionError, UnsupportedError

# `standard` waits with jitter, longer each time, and asks again only where that can help.
_ATTEMPTS = 5
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
# Sources that are read once, or to which somebody logs in again. Other credentials renew themselves, or were put into
# the session by its maker: a new session would not find them.
_READ_ONCE = frozenset({"env", "shared-credentials-file", "config-file", "sso"})
# Of these a profile is not the source, whatever AWS_PROFILE says.
_WITHOUT_PROFILE = frozenset({"env", "explicit", "iam-role", "container-role", "assume-role-with-web-identity"})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: the account, and the ARN of the user or of the role that was taken on."""

    account: str
    arn: str


class ServicePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where to ask for a job later, from another process; what the column `service` of the index holds.

    >>> ServicePlace.from_json('{"region": "eu-west-1", "account": "123456789012"}').region
    'eu-west-1'
    """

    region: str
    account: str
    profile: str | None = None

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> ServicePlace:
        return msgspec.json.decode(text, type=cls)


class AwsSession:
    """Clients of AWS's services, on the credentials and in the region that the user chose.

    >>> session = AwsSession.of(None)                                        # doctest: +SKIP
    >>> with session.asking("to find job digits-1"):                         # doctest: +SKIP
    ...     session.client("sagemaker").describe_training_job(TrainingJobName="digits-1")

    Nothing is asked before it is needed. May be used by several threads. Raises `UnsupportedError` where boto3 is not
    installed, `OptionError` where no region is set, and inside `asking` the errors of `AwsError`'s branch.
    """

    def __init__(
        self, boto: Any = None, *, region: str | None = None, profile: str | None = None, attempts: int = _ATTEMPTS
    ) -> None:
        """Take a `boto3.Session`, or find credentials as boto3 does: variables, profile, container, machine.

        `attempts` is how often one thing is asked for at most, where AWS does not answer or is too busy.
        """
        self._given = boto
        self._region = region
        self._profile = profile
        self._attempts = attempts
        self._lock = threading.RLock()
        self._clients: dict[tuple[str, str | None], Any] = {}
        self._boto: Any = None
        self._caller: Caller | None = None
        self._default_bucket: str | None = None

    @classmethod
    def of(cls, given: object) -> AwsSession:
        """Return the session for the option `sagemaker_session`.

        None stands for boto3's own search. Of a `sagemaker.Session` of AWS's SDK the `boto_session` is taken, and its
        default bucket with its prefix. Raises `OptionError` for anything else.
        """
        if given is None:
            return cls()
        if isinstance(given, _boto3().Session):
            return cls(given)
        boto = getattr(given, "boto_session", None)
        if not isinstance(boto, _boto3().Session):
            raise OptionError(
                f"sagemaker_session: {type(given).__name__} is neither a boto3.Session nor a sagemaker.Session; leave "
                "it out to have boto3 find credentials and region"
            )
        if getattr(given, "local_mode", False):
            raise OptionError(
                "sagemaker_session: a LocalSession runs jobs on this machine, and instance types ml.* run at AWS; give "
                "instance_type='local', or a sagemaker.Session"
            )
        session = cls(boto)
        # Its own `default_bucket()` would make the bucket; that waits until all checks have passed.
        bucket = getattr(given, "_default_bucket_name_override", None) or getattr(given, "_default_bucket", None)
        prefix = getattr(given, "default_bucket_prefix", None)
        if prefix and not bucket:
            raise OptionError("sagemaker_session: default_bucket_prefix needs default_bucket beside it")
        session._default_bucket = f"{bucket}/{prefix.strip('/')}" if prefix else bucket
        return session

    @classmethod
    def at(cls, place: ServicePlace) -> AwsSession:
        """Return a session for a job that another process submitted."""
        return cls(region=place.region, profile=place.profile)

    @property
    def default_bucket(self) -> str | None:
        """The default bucket (and prefix) that the user's own session names; None when it names none."""
        return self._default_bucket

    @property
    def loader(self) -> Any:
        """What reads the services' models for this session's clients; no session is made for it."""
        if self._given is None:
            return shared_loader()
        return self._given._session.get_component("data_loader")

    @property
    def region(self) -> str:
        region: str | None = self._region or self._session().region_name
        if region is None:
            raise OptionError(no_region("instance types ml.*"))
        return region

    @property
    def profile(self) -> str | None:
        """The profile of the AWS command line whose credentials are used; None when they come from elsewhere."""
        with self.asking("to find the AWS credentials"):
            credentials = self._session().get_credentials()
        if credentials is None or credentials.method in _WITHOUT_PROFILE:
            return self._profile
        return _profile_of(self._session())

    @property
    def caller(self) -> Caller:
        """Who asks; AWS is asked once."""
        with self._lock:
            if self._caller is None:
                with self.asking("to find out whose AWS credentials these are"):
                    identity = self.client("sts").get_caller_identity()
                self._caller = Caller(account=identity["Account"], arn=identity["Arn"])
            return self._caller

    @property
    def account(self) -> str:
        return self.caller.account

    @property
    def place(self) -> ServicePlace:
        """Where to ask for a job that is submitted with this session."""
        return ServicePlace(region=self.region, account=self.account, profile=self.profile)

    def client(self, service: str, *, region: str | None = None) -> Any:
        """Return boto3's client of a service, the same one each time; `region` where it is not the session's."""
        from botocore.config import Config

        with self._lock:
            if (service, region) not in self._clients:
                config = Config(
                    retries={"mode": "standard", "total_max_attempts": self._attempts},
                    connect_timeout=_CONNECT_SECONDS,
                    read_timeout=_READ_SECONDS,
                    user_agent_extra="herringbone",
                )
                with self.asking(f"to reach {service}"):
                    self._clients[service, region] = self._session().client(
                        service, region_name=region or self.region, config=config
                    )
            return self._clients[service, region]

    @staticmethod
    def transfer_config(*, part_bytes: int) -> Any:
        """Return boto3's settings for sending or fetching a large object in parts."""
        from boto3.s3.transfer import TransferConfig

        return TransferConfig(multipart_threshold=part_bytes, multipart_chunksize=part_bytes)

    def renew(self) -> None:
        """Forget clients and credentials, so that the next question reads them anew: after `aws sso login`, say."""
        with self._lock:
            self._clients.clear()
            self._caller = None
            given = self._given
            if given is None:
                self._boto = None
            elif (credentials := given.get_credentials()) is None or credentials.method in _READ_ONCE:
                self._boto = _boto3().Session(region_name=given.region_name, profile_name=_profile_of(given))

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Turn boto's errors into ours; `what` says what is asked for: "to create job digits-1"."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            # Without the cause: what it says of a signature repeats the session's token.
            raise explain(error, what, profile=self._login_profile()) from None

    def _session(self) -> Any:
        with self._lock:
            if self._boto is None:
                with self.asking("to start a session with AWS"):
                    self._boto = self._given or self._found()
            return self._boto

    def _found(self) -> Any:
        """Return a session on the credentials that boto3 finds."""
        boto3 = _boto3()
        from botocore.session import Session

        inner = Session()
        inner.register_component("data_loader", shared_loader())
        return boto3.Session(region_name=self._region, profile_name=self._profile, botocore_session=inner)

    def _login_profile(self) -> str | None:
        session = self._boto or self._given
        return (self._profile or os.environ.get("AWS_PROFILE")) if session is None else _profile_of(session)


def _boto3() -> Any:
    try:
        import boto3
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "AWS (instance types ml.*, its registry) needs boto3; install it with: pip install 'herringbone[aws]'"
        ) from error
    return boto3


def _profile_of(session: Any) -> str | None:
    name: str = session.profile_name
    return None if name == "default" else name
