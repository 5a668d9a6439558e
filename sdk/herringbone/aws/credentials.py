"""Say where boto3 would find credentials, without a request: whose account calls of AWS then go to."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from herringbone.system.user_paths import expanded

# `own` or `aws`: the account of a project of SageMaker's whose jobs go to own hosts.
ACCOUNT_VARIABLE = "HERRINGBONE_ACCOUNT"
_PROFILE_KEYS = (
    "aws_access_key_id", "sso_session", "sso_start_url", "role_arn", "credential_process", "login_session",
)  # fmt: skip
_OTHERS = {
    "AWS_ACCESS_KEY_ID": "the environment",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "a web identity",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "the container's role",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "the container's role",
    # Where another service answers as AWS.
    "AWS_ENDPOINT_URL": "the environment",
}
_VENDOR = Path("/sys/class/dmi/id/sys_vendor")


def credentials_source(
    environ: Mapping[str, str], profiles: Mapping[str, Mapping[str, str]], vendor: str = ""
) -> str | None:
    """Return where credentials are, None where there are none. Pure; `vendor` is the maker of this machine.

    >>> credentials_source({"AWS_PROFILE": "team"}, {"team": {"sso_session": "a"}})
    'profile team'
    """
    profile = _named(environ) or "default"
    has_keys = any(key in profiles.get(profile, {}) for key in _PROFILE_KEYS)
    if has_keys and not environ.get("AWS_ACCESS_KEY_ID"):
        return f"profile {profile}"
    found = next((where for name, where in _OTHERS.items() if environ.get(name)), None)
    return found or ("the role of this machine of AWS" if vendor == "Amazon EC2" else None)


def find_credentials(environ: Mapping[str, str]) -> str | None:
    """Return where the credentials of this machine and process are; see `credentials_source`."""
    try:
        vendor = _VENDOR.read_text().strip()
    except OSError:
        vendor = ""
    return credentials_source(environ, read_profiles(environ), vendor)


def find_region(environ: Mapping[str, str]) -> str | None:
    """Return the region that is configured: by a variable, or by the profile."""
    named = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return named or read_profiles(environ).get(_named(environ) or "default", {}).get("region")


def stands_in(environ: Mapping[str, str], source: str | None) -> bool:
    """Say whether folders stand in for an account's buckets: no account is configured, or the user asks for it.

    >>> stands_in({}, None), stands_in({}, "profile team"), stands_in({"HERRINGBONE_ACCOUNT": "own"}, "profile team")
    (True, False, True)
    """
    chosen = environ.get(ACCOUNT_VARIABLE, "")
    if chosen != "aws" and _has_joined(environ):
        return True
    # boto3 must tell that a profile is named and not there; accelerate names the default one whether it is or not.
    if chosen == "own" or source is not None or chosen == "aws" or _named(environ) not in (None, "", "default"):
        return chosen == "own"
    # An account may be configured in a file with a mistake, which boto3 must report, too.
    return not problem_of_files(environ)


def _has_joined(environ: Mapping[str, str]) -> bool:
    # A process that a notebook starts inherits its variables; see `herringbone.serve.personal`.
    ours = f"{environ.get('HERRINGBONE_HOME')}/service/aws.ini"
    return environ.get("AWS_CONFIG_FILE") == ours and environ.get("AWS_ACCESS_KEY_ID", "").startswith("HBAK")


def _named(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")


def read_profiles(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings of each of AWS's profiles, of both files."""
    profiles: dict[str, dict[str, str]] = {}
    for path in _files(environ):
        parser, problem = _parsed(path)
        if not problem:
            for section in parser.sections():
                profiles.setdefault(section.removeprefix("profile "), {}).update(parser[section])
    return profiles


def problem_of_files(environ: Mapping[str, str]) -> str:
    """Return a sentence about the first of AWS's files that cannot be used, "" if both can, or are not there.

    boto takes a file that it cannot open for one that is not there.
    """
    problems = ((path, _parsed(path)[1]) for path in _files(environ))
    return next((f"{path}{problem}; correct it, or move it away" for path, problem in problems if problem), "")


def _files(environ: Mapping[str, str]) -> list[Path]:
    names = (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
    return [expanded(environ.get(variable) or f"~/.aws/{name}") for variable, name in names]


def _parsed(path: Path) -> tuple[configparser.RawConfigParser, str]:
    """Return the file's parser, and what keeps it from being used; the line itself may be a secret."""
    # A key may contain a percent sign.
    parser = configparser.RawConfigParser()
    try:
        # A FIFO would be waited for.
        if path.exists() and not path.is_file():
            return parser, " is no file"
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except OSError as error:
        return parser, f" cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return parser, " is not in UTF-8"
    except configparser.ParsingError as error:
        line = error.lineno if isinstance(error, configparser.MissingSectionHeaderError) else error.errors[0][0]
        return parser, f", line {line}: no [profile] and no `name = value` below one"
    except (configparser.DuplicateSectionError, configparser.DuplicateOptionError) as error:
        return parser, f", line {error.lineno}: it stands there for the second time"
    return parser, ""
