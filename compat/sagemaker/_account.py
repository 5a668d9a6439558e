"""Whose account a notebook's calls of AWS go to: the user's, or on own hosts a service here that stands in for one.

A stand-in takes over only where no account is configured, or where HERRINGBONE_ACCOUNT=own asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

from herringbone import HerringboneError, OptionError
from herringbone.aws.credentials import ACCOUNT_VARIABLE, find_credentials, find_region, stands_in
from herringbone.records.home import find_home
from herringbone.serve.personal import join, without_account
from sagemaker import _notebook


def begin(environ: MutableMapping[str, str]) -> None:
    """Choose the account of this process, and say in one line which it is."""
    # In a rank, a script that imports `sagemaker` has the job's account.
    if not _notebook.on_own_hosts(environ) or environ.get("TRAINING_JOB_NAME"):
        return
    if (chosen := environ.get(ACCOUNT_VARIABLE, "")) not in ("", "own", "aws"):
        raise OptionError(
            f"{ACCOUNT_VARIABLE}: {chosen!r}: own or aws; leave it out for the account that is configured"
        )
    source = find_credentials(environ)
    if not stands_in(environ, source):
        if not environ.get(ACCOUNT_VARIABLE):
            way = f"{ACCOUNT_VARIABLE}=own takes folders of yours instead"
            _say(f"s3:// and AWS's API are those of the account of {source or 'AWS_PROFILE'}; {way}")
        return
    try:
        home = find_home()
        variables = join(home, environ[_notebook.INSTANCE_TYPE_VARIABLE])
    except (HerringboneError, OSError) as error:
        _say(f"no stand-in for AWS: {error}")
        return
    for name in environ.keys() - without_account(environ).keys():
        del environ[name]
    # Before the variables of the stand-in hide the user's own.
    region = find_region(environ)
    environ.update(variables)
    if region:
        environ["AWS_DEFAULT_REGION"] = region
    way = f"{ACCOUNT_VARIABLE}=aws changes that"
    _say(f"no account of AWS is asked: buckets are the folders in {home.path}/buckets; {way}")


def _say(text: str) -> None:
    print(f"herringbone: {text}", file=sys.stderr)
