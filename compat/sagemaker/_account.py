"""Whose account a notebook's calls of AWS go to: the user's, or on own hosts a service here that stands in for one.

A stand-in takes over only where no account is configured, or where HERRINGBONE_ACCOUNT=own asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping

from herringbone import HerringboneError
from herringbone.system.user_paths import expanded
from sagemaker import _notebook

VARIABLE = "HERRINGBONE_ACCOUNT"
# Where boto3 finds an account without asking a network.
_VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL",
)  # fmt: skip
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}


def configured(environ: Mapping[str, str]) -> str | None:
    """Return where an account is configured: a variable, or a file; None without any.

    >>> configured({"AWS_PROFILE": "team"})
    'AWS_PROFILE'
    """
    for name in _VARIABLES:
        if environ.get(name):
            return name
    for name, usual in _FILES.items():
        if (path := expanded(environ.get(name, usual))).is_file():
            return str(path)
    return None


def begin(environ: MutableMapping[str, str]) -> None:
    """Choose the account of this process, and say in one line which it is."""
    chosen = environ.get(VARIABLE, "")
    # In a rank, a script that imports `sagemaker` has the job's account.
    if not _notebook.on_own_hosts(environ) or chosen == "aws" or environ.get("TRAINING_JOB_NAME"):
        return
    found = configured(environ)
    if found and chosen != "own":
        _say(f"s3:// and AWS's API are those of the account in {found}; {VARIABLE}=own takes folders of yours instead")
        return
    from herringbone.records.home import find_home
    from herringbone.serve.personal import join

    try:
        home = find_home()
        variables = join(home, environ[_notebook.INSTANCE_TYPE_VARIABLE])
    except HerringboneError as error:
        _say(f"no stand-in for AWS: {error}")
        return
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
        environ.pop(name, None)
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    environ.update(variables)
    if region:
        environ["AWS_DEFAULT_REGION"] = region
    _say(f"no account of AWS is asked: buckets are the folders in {home.path}/buckets; {VARIABLE}=aws changes that")


def _say(text: str) -> None:
    print(f"herringbone: {text}", file=sys.stderr)
