"""Run tests of mark `gpu` and count them.

Usage: python device_tests.py tests/gpu/test_pipeline.py [--device cuda|cpu] [--tiny]

`--device cpu` runs the same tests over gloo on the CPU, `--tiny` few of them. The last line is JSON: the counts, and
the names of tests that failed. Without `--device cpu`, a skipped test is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from common import ROOT, end_on_sigterm, finish, options_of


def counts(report: str) -> dict[str, Any]:
    """Return the counts of pytest's report in JUnit's XML, and the names of tests that failed.

    >>> counts('<testsuite><testcase name="a"/><testcase name="b"><failure/></testcase></testsuite>')
    {'passed': 1, 'skipped': 0, 'failed': ['b']}
    """
    # Our own pytest wrote it.
    cases = list(ElementTree.fromstring(report).iter("testcase"))  # noqa: S314
    ends = ("failure", "error")
    failed = [case.get("name", "") for case in cases if any(case.find(end) is not None for end in ends)]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - len(failed) - skipped, "skipped": skipped, "failed": failed}


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("tests")
    options = parser.parse_args()
    end_on_sigterm()
    mode = ["--gpu-dry"] if options.device == "cpu" else ["--gpu-required"]
    # One model of each file, in one precision.
    few = ["-k", "float64 and (ConvNet or buffers)"] if options.tiny else []
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder, "junit.xml")
        # Plugins of this Python are unknown, and their warnings would be errors.
        command = [
            sys.executable,
            "-m",
            "pytest",
            options.tests,
            "-q",
            "-p",
            "pytest_timeout",
            "-p",
            "no:cacheprovider",
        ]
        command += ["-o", "filterwarnings=", *mode, *few, f"--junitxml={xml}"]
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environ, check=False)
        if not xml.exists():
            return finish({"failed": [f"pytest ended with exit code {done.returncode} before the first test"]})
        result = counts(xml.read_text(encoding="utf-8"))
    if done.returncode and not result["failed"]:
        result["failed"] = [f"pytest ended with exit code {done.returncode}"]
    if not result["passed"]:
        result["failed"].append("no test ran")
    return finish(result)


if __name__ == "__main__":
    sys.exit(main())
