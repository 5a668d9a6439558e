"""STS's and IAM's operations that clients of SageMaker call: GetCallerIdentity, and GetRole. Pure.

Both services speak the Query protocol: a form in, XML out.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

from herringbone.serve.errors import ApiError, invalid
from herringbone.serve.settings import Settings

_NAMESPACES = {
    "sts": "https://sts.amazonaws.com/doc/2011-06-15/",
    "iam": "https://iam.amazonaws.com/doc/2010-05-08/",
}

# Every role may be passed to the service, as far as the settings allow it; clients look for this statement.
_TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", '
    '"Principal": {"Service": "sagemaker.amazonaws.com"}}]}'
)


def parse_form(body: bytes) -> dict[str, str]:
    """Return the members of a form. Raises `ApiError` for one that is no form.

    >>> parse_form(b"Action=GetCallerIdentity&Version=2011-06-15")["Action"]
    'GetCallerIdentity'
    """
    try:
        return dict(parse_qsl(body.decode(), strict_parsing=True, max_num_fields=50))
    except ValueError:
        raise invalid("the body is no form") from None


def answer(service: str, form: Mapping[str, str], user: str, settings: Settings, request_id: str) -> bytes:
    """Return the XML answer to a call of STS or IAM. Raises `ApiError` for another operation."""
    operation = form.get("Action", "")
    if (service, operation) == ("sts", "GetCallerIdentity"):
        arn = f"arn:aws:iam::{settings.account}:user/{user}"
        members = f"<Arn>{escape(arn)}</Arn><UserId>{escape(user)}</UserId><Account>{settings.account}</Account>"
    elif (service, operation) == ("iam", "GetRole"):
        # AWS's SDK asks for the ARN of a role that is given by its name.
        name = form.get("RoleName", "")
        if not (0 < len(name) <= 64 and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise invalid("RoleName: expected a name of letters, digits, '-' and '_'")
        members = (
            f"<Role><Path>/</Path><RoleName>{name}</RoleName><RoleId>{name}</RoleId>"
            f"<Arn>arn:aws:iam::{settings.account}:role/{name}</Arn><CreateDate>1970-01-01T00:00:00Z</CreateDate>"
            f"<AssumeRolePolicyDocument>{quote(_TRUST)}</AssumeRolePolicyDocument></Role>"
        )
    elif service == "iam":
        # As AWS answers users who may not look at IAM. Clients that only check a role go on; `sagemaker` 3.x does.
        raise ApiError("AccessDenied", f"User {user} is not authorized to perform: iam:{operation[:100]}", 403)
    else:
        raise ApiError("InvalidAction", f"this service has no operation {operation[:100]!r} of {service}")
    return (
        f'<{operation}Response xmlns="{_NAMESPACES[service]}"><{operation}Result>{members}</{operation}Result>'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{operation}Response>"
    ).encode()


def s3_error(failure: ApiError, request_id: str) -> bytes:
    """Return an error as S3's clients read it."""
    return (
        f"<Error><Code>{failure.code}</Code><Message>{escape(failure.message)}</Message>"
        f"<RequestId>{request_id}</RequestId></Error>"
    ).encode()


def error(service: str, failure: ApiError, request_id: str) -> bytes:
    """Return an error as XML."""
    return (
        f'<ErrorResponse xmlns="{_NAMESPACES[service]}"><Error><Type>Sender</Type><Code>{failure.code}</Code>'
        f"<Message>{escape(failure.message)}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()
