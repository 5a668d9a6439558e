"""The submitting machine's settings of pip, for containers that install a job's requirements. Pure but for `exists`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from herringbone_contract.errors import InputError

# A container reads both here, as copies or read-only mounts.
CERTIFICATE = "/opt/herringbone-pip/ca.pem"
WHEELS = "/opt/herringbone-pip/wheels"
_WHEELS_VARIABLE = "PIP_FIND_LINKS"
# pip on this machine reads all of these; in a container the file is that of the first.
_CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_INDEX_VARIABLES = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_NO_INDEX"),
    *("PIP_RETRIES", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"),
)


class PipFiles(NamedTuple):
    """Files of this machine that pip's variables name; None for a variable that is not set, or names no file here."""

    certificate: Path | None
    wheels: Path | None


def pip_files(environ: Mapping[str, str]) -> PipFiles:
    """Return the file with certificates that pip trusts here, and the folder of `PIP_FIND_LINKS`."""
    certificates = (_existing(environ, name) for name in _CERTIFICATE_VARIABLES)
    return PipFiles(next(filter(None, certificates), None), _existing(environ, _WHEELS_VARIABLE))


def index_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's variables that mean the same in a container. An index in a folder of this machine is not one.

    >>> index_variables({"PIP_INDEX_URL": "https://pypi.example.com/simple", "PIP_EXTRA_INDEX_URL": "file:///srv"})
    {'PIP_INDEX_URL': 'https://pypi.example.com/simple'}
    """
    return {name: environ[name] for name in _INDEX_VARIABLES if environ.get(name) and "file:" not in environ[name]}


def start_variables(environ: Mapping[str, str], proxies: Mapping[str, str], files: PipFiles) -> dict[str, str]:
    """Return the variables for pip in a container whose mounts have the files. `proxies` are Docker's own settings.

    >>> start_variables({}, {"https_proxy": "http://proxy:3128"}, PipFiles(Path("/etc/ca.pem"), None))
    {'https_proxy': 'http://proxy:3128', 'PIP_CERT': '/opt/herringbone-pip/ca.pem'}
    """
    variables = {**proxies, **index_variables(environ)}
    if files.certificate is not None:
        variables[_CERTIFICATE_VARIABLES[0]] = CERTIFICATE
    if files.wheels is not None:
        variables[_WHEELS_VARIABLE] = WHEELS
    return variables


def setting_lines(settings: Mapping[str, str]) -> bytes:
    """Return lines for `export`, which takes each whole line as one name and its value. Pure.

    >>> setting_lines({"http_proxy": "http://me:$(secret)@proxy:3128"})
    b'http_proxy=http://me:$(secret)@proxy:3128\\n'
    """
    for name, value in settings.items():
        if not value.isprintable():
            raise InputError(f"{name}, of Docker's settings or of the environment, has a control character; remove it")
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()


def _existing(environ: Mapping[str, str], variable: str) -> Path | None:
    path = environ.get(variable)
    return Path(path).absolute() if path and Path(path).exists() else None
