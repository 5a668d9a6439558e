"""The role that a training job takes on: found by name, by ARN or from the caller, and known to trust SageMaker."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from herringbone.aws.session import AwsSession, Caller
from herringbone_contract.errors import AwsAccessError, AwsError, OptionError

_TRUSTED = "sagemaker.amazonaws.com"
_ROLE = re.compile(r"arn:(?P<partition>[\w-]+):iam::(?P<account>\d{12}):role/(?:.*/)?(?P<name>[\w+=,.@-]+)")
_ASSUMED = re.compile(r"arn:[\w-]+:sts::\d{12}:assumed-role/(?P<name>[\w+=,.@-]+)/.+")
# SageMaker's console makes its roles below this path, which the ARN of a session does not tell.
_CONSOLE_ROLE, _CONSOLE_PATH = "AmazonSageMaker-ExecutionRole", "service-role/"
_TRUST_STATEMENT = (
    '{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}'
)


def find_role(session: AwsSession, role: str | None, *, say: Callable[[str], None]) -> str:
    """Return the ARN of the role that was given by name or ARN; None stands for the role that the caller has taken on.

    >>> find_role(session, "training", say=print)                 # doctest: +SKIP
    'arn:aws:iam::123456789012:role/training'

    Raises `OptionError` for a role that is not there, is another account's, or does not trust SageMaker. Where the
    caller may not look at roles, the ARN is made from the name, and `say` is told that nothing was checked.
    """
    name, arn = named_role(role, session.caller)
    try:
        with session.asking(f"to find role {name}"):
            found = session.client("iam").get_role(RoleName=name)["Role"]
    except AwsAccessError:
        if role is None or role != arn:
            say(f"role {arn}: taken as it is, because the caller may not look at roles (iam:GetRole)")
        return arn
    except AwsError as error:
        if error.code == "NoSuchEntity":
            raise OptionError(
                f"role: account {session.account} has no role {name!r}; `aws iam list-roles` shows those that it has, "
                "docs/aws-account.md makes one"
            ) from None
        raise
    if not trusts_sagemaker(found["AssumeRolePolicyDocument"]):
        whose = "" if role else ", which is the caller's own"
        raise OptionError(
            f"role: {found['Arn']}{whose}, cannot be taken on by SageMaker; give another (role=...), or add to its "
            f"trust policy: {_TRUST_STATEMENT}"
        )
    return str(found["Arn"])


def named_role(role: str | None, caller: Caller) -> tuple[str, str]:
    """Return a role's name, and its ARN as far as that can be told without asking. Pure.

    >>> named_role("training", Caller(account="123456789012", arn="arn:aws:iam::123456789012:user/me"))
    ('training', 'arn:aws:iam::123456789012:role/training')

    Raises `OptionError` where there is no role in what was given, or it is another account's.
    """
    if role is None:
        assumed = _ASSUMED.fullmatch(caller.arn)
        if assumed is None:
            raise OptionError(
                f"role: missing, and the caller {caller.arn} has taken on none; give the role of the job by name or ARN"
            )
        role = assumed["name"]
        path = _CONSOLE_PATH if role.startswith(_CONSOLE_ROLE) else ""
        return role, f"{_partition_of(caller)}:iam::{caller.account}:role/{path}{role}"
    if not role.startswith("arn:"):
        name = role.rpartition("/")[2]
        return name, f"{_partition_of(caller)}:iam::{caller.account}:role/{role.strip('/')}"
    match = _ROLE.fullmatch(role)
    if match is None:
        raise OptionError(f"role: {role} is no role's ARN; one reads arn:aws:iam::{caller.account}:role/NAME")
    if match["account"] != caller.account:
        raise OptionError(
            f"role: {role} is of account {match['account']}, and the credentials are of {caller.account}; a job's role "
            "is of the account that runs it. Give another role, or other credentials (AWS_PROFILE)"
        )
    return match["name"], role


def trusts_sagemaker(policy: Mapping[str, Any]) -> bool:
    """Say whether a trust policy lets SageMaker take the role on; conditions are left to AWS. Pure.

    >>> trusts_sagemaker({"Statement": {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"},
    ...                                 "Action": "sts:AssumeRole"}})
    False
    """
    return any(
        statement.get("Effect") == "Allow"
        and {"sts:AssumeRole", "sts:*", "*"} & set(_each(statement.get("Action")))
        and _names_sagemaker(statement.get("Principal"))
        for statement in _each(policy.get("Statement"))
    )


def _names_sagemaker(principal: Any) -> bool:
    if isinstance(principal, Mapping):
        principal = principal.get("Service")
    return bool({_TRUSTED, "*"} & set(_each(principal)))


def _each(value: Any) -> list[Any]:
    """A policy may leave the brackets of a list of one away."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _partition_of(caller: Caller) -> str:
    """`arn:aws`, `arn:aws-cn` or the like."""
    return ":".join(caller.arn.split(":")[:2])
