"""STS's and IAM's operations that clients of SageMaker call: GetCallerIdentity, and GetRole. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from herringbone.serve.calls import Call
from herringbone.serve.errors import invalid
from herringbone.serve.settings import Settings

# Every role may be passed to the service, as far as the settings allow it; clients look for this statement.
_TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", '
    '"Principal": {"Service": "sagemaker.amazonaws.com"}}]}'
)


class Identity:
    """The operations on callers and roles; each takes the call and the members of its request.

    >>> Identity(Settings(backend="local_process")).get_role(call, {"RoleName": "me"})["Role"]["Arn"] # doctest: +SKIP
    'arn:aws:iam::000000000000:role/me'
    """

    def __init__(self, settings: Settings) -> None:
        self._account = settings.account

    def get_caller_identity(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        del request
        name = call.key.name
        return {"Arn": f"arn:aws:iam::{self._account}:user/{name}", "UserId": name, "Account": self._account}

    def get_role(self, call: Call, request: dict[str, Any]) -> dict[str, Any]:
        """Answer AWS's SDK, which asks for the ARN of a role that is given by its name."""
        del call
        name = request["RoleName"]
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise invalid("RoleName: expected a name of letters, digits, '-' and '_'")
        role = {
            "Path": "/",
            "RoleName": name,
            # Of AWS's form, whose ids have 16 characters or more.
            "RoleId": f"AROA{name:0<16}",
            "Arn": f"arn:aws:iam::{self._account}:role/{name}",
            "CreateDate": 0.0,
            "AssumeRolePolicyDocument": quote(_TRUST),
        }
        return {"Role": role}
