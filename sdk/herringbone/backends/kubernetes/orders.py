"""Commands for a pod's shell, by exec: stop its host with a grace, or kill it. A pod obeys each of them once."""

from __future__ import annotations

from herringbone.backends.kubernetes.pods import RUN_FOLDER

# $0 are the seconds of grace. The first process of a pod cannot be killed from inside; it ends when all others have. It
# ends with the code of a stop where it finds `told`. Results that are being sent to S3 are not killed.
_STOP = f"""\
cd {RUN_FOLDER}
[ -e told ] || {{ touch told; kill -TERM 1; }}
[ -e "told.$0" ] || {{ touch "told.$0"; (sleep "$0"; [ -e ended ] || kill -KILL -1) >/dev/null 2>&1 & }}
"""
_KILL = f"touch {RUN_FOLDER}/told; kill -KILL -1"


def stop_command(grace: float) -> list[str]:
    """Return the command that stops a host; with a grace of 0 it is killed.

    >>> stop_command(2.5)[-1], stop_command(0)[-1][-13:]
    ('2.5', 'kill -KILL -1')
    """
    return ["/bin/sh", "-c", _STOP, f"{grace:g}"] if grace else ["/bin/sh", "-c", _KILL]
