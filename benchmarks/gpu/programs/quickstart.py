"""Run the quickstart as jobs on a device: a model over two ranks, with tensors of the device, next to one process.

Usage: python quickstart.py [--device cuda|cpu] [--tiny]

Where there is one device, both ranks share it. The last line is JSON: accuracy, seconds and the largest difference of
weights. The program fails if a rank was on another device, or if the difference or the accuracy is beyond its limit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from benchmarks.gpu.report import result_of
from common import ROOT, finish, options_of, own_home

SUBMIT = ROOT / "examples" / "digits" / "submit.py"
# CPUs add in one order. Kernels of a device depend on the size of a batch, and six epochs let the difference grow.
DIFFERENCE = {"cpu": 1e-5, "cuda": 1e-3}
ACCURACY = 0.95
_ON = re.compile(r"this rank holds \d+ parameters on (\w+)")


def judge(output: str, device: str, *, tiny: bool) -> dict[str, Any]:
    """Return the figures of the quickstart's output, and in `failed` what is not as it should be."""
    result = result_of(output) or {}
    ranks = _ON.findall(output)
    failed = []
    if ranks != [device] * 2:
        failed.append(f"two ranks should be on {device}; the log names {ranks}")
    if not result.get("difference", 1.0) <= DIFFERENCE[device]:
        failed.append(f"the weights differ by {result.get('difference')}, more than {DIFFERENCE[device]}")
    if not tiny and not result.get("accuracy", 0.0) >= ACCURACY:
        failed.append(f"the accuracy is {result.get('accuracy')}, less than {ACCURACY}")
    figures = {name: result.get(name) for name in ("accuracy", "difference", "seconds")}
    return {**figures, **({"failed": failed} if failed else {})}


def main() -> int:
    options = options_of(__doc__).parse_args()
    with own_home():
        command = [sys.executable, str(SUBMIT), "--json", "--epochs", "1" if options.tiny else "6"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode:
        return finish({"failed": [f"the quickstart ended with exit code {done.returncode}"]})
    return finish(judge(done.stdout, options.device, tiny=options.tiny))


if __name__ == "__main__":
    sys.exit(main())
