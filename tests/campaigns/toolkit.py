"""Run the functional tests of AWS's open-source training toolkit against our package of the same name.

    python -m tests.campaigns.toolkit CHECKOUT --python PYTHON [--toolkit] [PYTEST ARGUMENTS]

CHECKOUT is a checkout of github.com/aws/sagemaker-training-toolkit, of which this repository has no copy. PYTHON has
what those tests import, and they install small packages into it:

    pip install pytest mock six numpy werkzeug setuptools msgspec 'sagemaker<3'

With `--toolkit` they test the toolkit itself, for which PYTHON also needs:

    pip install retrying gevent inotify_simple paramiko psutil protobuf scipy

S3 is a mock on this machine, for which the Python of this script needs moto.

Prints one JSON object: how many tests passed and were skipped, and the names of those that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.aws_mock import mock_aws

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "sagemaker_training"
OURS = ("sdk", "contract", "entrypoints", "parallel")
# The SDK asks STS at an address that it makes itself, and not at the mock's.
PLUGIN = """
import os
import sagemaker.session
sagemaker.session.sts_regional_endpoint = lambda region: os.environ["AWS_ENDPOINT_URL"]
"""
# The platform makes these before a container starts.
FOLDERS = ("input/config", "input/data", "code", "model", "output/data")


def paths(scratch: Path, checkout: Path, *, itself: bool) -> list[Path]:
    """Return the folders from which the tests import, and make the one that has our package alone.

    Alone, because the tests also need the real `sagemaker`, whose name our wheel has, too.
    """
    if itself:
        return [scratch, checkout / "src"]
    site = scratch / "site"
    site.mkdir()
    (site / PACKAGE).symlink_to(ROOT / "compat" / PACKAGE)
    return [scratch, site, *(ROOT / name for name in OURS)]


def summary(report: Path) -> dict[str, Any]:
    """Count the tests of a JUnit report.

    >>> summary(Path("report.xml"))                                        # doctest: +SKIP
    {'passed': 27, 'skipped': 2, 'failed': []}
    """
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(case.attrib["name"])
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "skipped": skipped, "failed": failed}


def main() -> int:
    """Run the tests in a scratch folder, and return 0 if none failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--toolkit", action="store_true", help="test the toolkit itself")
    options, words = parser.parse_known_args()
    checkout = options.checkout.resolve()
    if not (checkout / "test" / "functional").is_dir():
        parser.error(f"{checkout} has no test/functional: name a checkout of sagemaker-training-toolkit")
    # Not resolved: a virtual environment's Python is a link to another one.
    python = os.path.abspath(options.python)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        shutil.copytree(checkout / "test", scratch / "test")
        for name in FOLDERS:
            (scratch / "ml" / name).mkdir(parents=True)
        (scratch / "own_sts.py").write_text(PLUGIN)
        search = paths(scratch, checkout, itself=options.toolkit)
        with mock_aws(scratch / "aws.log") as address:
            environ = {
                **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SM_"))},
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "mock",
                "AWS_SECRET_ACCESS_KEY": "mock",
                "AWS_DEFAULT_REGION": "us-west-2",
                "AWS_EC2_METADATA_DISABLED": "true",
                "SAGEMAKER_BASE_DIR": str(scratch / "ml"),
                "PATH": os.pathsep.join([os.path.dirname(python), os.environ["PATH"]]),
                "PYTHONPATH": os.pathsep.join(map(str, search)),
            }
            report = scratch / "report.xml"
            command = [
                python,
                "-m",
                "pytest",
                "-p",
                "own_sts",
                "-p",
                "no:cacheprovider",
                f"--junitxml={report}",
                "test/functional",
            ]
            subprocess.run([*command, *words], cwd=scratch, env=environ, check=False)
        if not report.exists():
            print("pytest wrote no report; its output above says why", file=sys.stderr)
            return 1
        result = summary(report)
    print(json.dumps(result))
    return 0 if result["passed"] and not result["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
