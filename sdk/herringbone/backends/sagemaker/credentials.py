"""Questions that outlive their credentials: a job may take longer than a login lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from herringbone.aws.session import AwsSession
from herringbone_contract.errors import AwsCredentialsError

_Answer = TypeVar("_Answer")


def renewed(session: AwsSession, ask: Callable[[], _Answer]) -> _Answer:
    """Ask; where the credentials are no good, read them anew and ask once more.

    >>> renewed(session, lambda: look_up(session, "digits-1"))       # doctest: +SKIP

    Raises `AwsCredentialsError` while nobody has logged in again.
    """
    try:
        return ask()
    except AwsCredentialsError:
        session.renew()
        return ask()
