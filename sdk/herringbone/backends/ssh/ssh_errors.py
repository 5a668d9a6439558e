"""What ssh's own words mean, and what to do about them. Pure."""

from __future__ import annotations

from herringbone.backends.ssh.inventory import Machine

_LAST_CHARS = 300
# What ssh or the shell over there says, in lower case -> what is the matter. The first that fits is taken.
_MEANINGS = (
    (
        "remote host identification has changed",
        "its host key is another than the one that is known, so nothing was sent; if the machine was installed anew, "
        "`ssh-keygen -R {host}` forgets the old key",
    ),
    (
        "host key verification failed",
        "its host key is not known here, so nothing was sent; log in once by hand (`{ssh}`) and compare the key",
    ),
    (
        "permission denied",
        "it does not let {who} in; does `{ssh}` work without a question? If not, look at `user` and keys",
    ),
    ("could not resolve hostname", "no such host: {host} has no address; look at `host` in the inventory"),
    ("connection refused", "nobody listens at {host}, port {port}; does sshd run there? Look at `port`"),
    ("connection timed out", "{host} does not answer; is the machine up, and the network?"),
    ("no route to host", "no way leads to {host}; is the machine up, and the network?"),
    ("network is unreachable", "no way leads to {host}; is this machine's network up?"),
    ("operation timed out", "{host} does not answer; is the machine up, and the network?"),
    ("no space left on device", "its disk is full"),
)
_NO_PROGRAM = 127


def explain(machine: Machine, code: int, errors: str) -> str:
    """Say why ssh ended, from its exit code and its standard error.

    >>> explain(Machine(name="gpu-1", port=2222), 255, "ssh: connect to host gpu-1: Connection refused").split(" (")[0]
    'nobody listens at gpu-1, port 2222; does sshd run there? Look at `port`'
    """
    low = errors.lower()
    said = " ".join(errors.split())[-_LAST_CHARS:]
    for words, meaning in _MEANINGS:
        if words in low:
            return f"{_filled(meaning, machine)} ({said})"
    if code == _NO_PROGRAM:
        return f"it has no {machine.python}; install Python 3.10 or newer there, or name one by `python` ({said})"
    if not errors:
        return f"the connection broke (ssh ended with {code})"
    return said


def _filled(meaning: str, machine: Machine) -> str:
    port = [] if machine.port is None else ["-p", str(machine.port)]
    user = [] if machine.user is None else ["-l", machine.user]
    return meaning.format(
        host=machine.destination,
        port=machine.port or 22,
        who=machine.user or "you",
        ssh=" ".join(["ssh", *port, *user, machine.destination]),
    )
