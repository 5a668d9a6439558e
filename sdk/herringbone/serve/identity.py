"""STS's and IAM's operations that clients of SageMaker call: GetCallerIdentity, and GetRole. Pure.

Both services speak the Query protocol: a form in, XML out.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote

from herringbone.s3.front.documents import Member, document
from herringbone.serve.actions import not_served
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
    members: list[Member]
    if (service, operation) == ("sts", "GetCallerIdentity"):
        arn = f"arn:aws:iam::{settings.account}:user/{user}"
        members = [("Arn", arn), ("UserId", user), ("Account", settings.account)]
    elif (service, operation) == ("iam", "GetRole"):
        # AWS's SDK asks for the ARN of a role that is given by its name.
        name = form.get("RoleName", "")
        if not (0 < len(name) <= 64 and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise invalid("RoleName: expected a name of letters, digits, '-' and '_'")
        role: list[Member] = [
            ("Path", "/"),
            *(("RoleName", name), ("RoleId", name), ("Arn", f"arn:aws:iam::{settings.account}:role/{name}")),
            *(("CreateDate", "1970-01-01T00:00:00Z"), ("AssumeRolePolicyDocument", quote(_TRUST))),
        ]
        members = [("Role", role)]
    elif service == "iam":
        # As AWS answers users who may not look at IAM. Clients that only check a role go on; `sagemaker` 3.x does.
        raise ApiError("AccessDenied", f"User {user} is not authorized to perform: iam:{operation[:100]}", 403)
    else:
        raise not_served("InvalidAction", service, operation)
    parts: list[Member] = [(f"{operation}Result", members), ("ResponseMetadata", [("RequestId", request_id)])]
    return document(f"{operation}Response", parts, namespace=_NAMESPACES[service])


def error(service: str, failure: ApiError, request_id: str) -> bytes:
    """Return an error as XML."""
    members: list[Member] = [("Type", "Sender"), ("Code", failure.code), ("Message", failure.message)]
    parts: list[Member] = [("Error", members), ("RequestId", request_id)]
    return document("ErrorResponse", parts, namespace=_NAMESPACES[service])
