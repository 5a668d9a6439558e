"""A supervisor for the controller's own tests: real processes, one rank per host, no control channel.

It implements the parts of the contract that the controller relies on: prefixed lines on standard output, SIGTERM ends
the job, the exit code, `output/failure.json`, and the lifeline.
"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

base = Path(os.environ["SAGEMAKER_BASE_DIR"])
host = json.loads((base / "input/config/resourceconfig.json").read_text())["current_host"]
hyperparameters = json.loads((base / "input/config/hyperparameters.json").read_text())
program = base / "code" / json.loads(hyperparameters["sagemaker_program"])
lifeline = int(os.environ["HERRINGBONE_LIFELINE_FD"])
key_file = os.environ.get("HERRINGBONE_KEY_FILE")
key = Path(key_file).read_bytes() if key_file else b""

rank = subprocess.Popen(
    [sys.executable, "-u", str(program)],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    env={**os.environ, "SM_MODEL_DIR": str(base / "model"), "SM_CURRENT_HOST": host, "KEY_BYTES": str(len(key))},
    cwd=base / "code",
)
received = []


def stop(number: int, frame: object) -> None:
    received.append(number)
    rank.send_signal(signal.SIGKILL if number == signal.SIGINT else number)


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
output = rank.stdout.fileno()
partial = b""
while True:
    ready, _, _ = select.select([output, lifeline], [], [])
    if lifeline in ready:
        # End-of-file: the controller is gone.
        rank.kill()
        sys.exit(143)
    chunk = os.read(output, 65536)
    lines = (partial + chunk).split(b"\n")
    partial = lines.pop()
    if not chunk and partial:
        lines, partial = [partial], b""
    for line in lines:
        os.write(1, b"[%s:0] %s\n" % (host.encode(), line))
    if not chunk:
        break
code = rank.wait()
code = 128 - code if code < 0 else code
if received:
    sys.exit(code and 143)
if code:
    failure = {"host": host, "rank": 0, "exit_code": code, "exception": "", "message": "", "frames": [], "log_tail": []}
    (base / "output/failure.json").write_text(json.dumps(failure))
sys.exit(code)
