"""Run a program until it ends, or until whoever started this one is gone: `python guard.py WORD ...`.

Standard input is a pipe whose other end the caller holds. The kernel closes that end also when the caller is killed,
and the guard then kills its process group: the program, and all that it has started. The guard's exit code is the
program's, 128 and the signal's number for one that a signal ended.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the program that the arguments name; return its exit code."""
    # The program gets the group's SIGTERM itself, and ends as it likes. It would inherit SIG_IGN, but no handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_kill_without_caller, daemon=True).start()
    code = program.wait()
    return code if code >= 0 else 128 - code


def _kill_without_caller() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
