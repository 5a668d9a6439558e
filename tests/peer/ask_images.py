"""Print, as JSON, the name of each training image that the released `sagemaker` package knows, or its error.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/peer/ask_images.py`. Each answer is
`[framework, version, base version, Python, instance type, region, name]`; the name is None where the package refuses.
"""

import functools
import json
import logging
import os
import sys
from pathlib import Path

os.environ.update(AWS_DEFAULT_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true", SAGEMAKER_SUPPRESS_V2_WARNING="1")
logging.disable(logging.CRITICAL)

import sagemaker  # noqa: E402
from sagemaker import image_uris, utils  # noqa: E402

CPU, GPU = "ml.m5.xlarge", "ml.p3.2xlarge"
REGIONS = ("us-east-1", "cn-north-1", "ap-east-1", "us-gov-west-1")
# They read the same files at each call.
image_uris.config_for_framework = functools.cache(image_uris.config_for_framework)
utils._botocore_resolver = functools.cache(utils._botocore_resolver)


def ask(framework, version, base, python, kind, region):
    try:
        name = image_uris.retrieve(
            framework,
            region,
            version=version,
            py_version=python,
            instance_type=kind,
            image_scope="training",
            base_framework_version=base,
        )
    except (ValueError, TypeError, KeyError):
        name = None
    return [framework, version, base, python, kind, region, name]


def questions(framework):
    table = json.loads((Path(sagemaker.__file__).parent / "image_uri_config" / f"{framework}.json").read_text())
    table = table.get("training", table)
    rows = {version: table["versions"].get(full) for version, full in table.get("version_aliases", {}).items()}
    for version, row in {**table["versions"], **rows}.items():
        bases = [key for key in row if isinstance(row[key], dict) and "repository" in row[key]]
        for base in [*bases, *row.get("version_aliases", {})] if framework == "huggingface" else [None]:
            found = row if base is None else row[row.get("version_aliases", {}).get(base, base)]
            for python in {*found.get("py_versions", ()), None}:
                for kind in (CPU, GPU):
                    for region in REGIONS if kind == GPU else REGIONS[:1]:
                        yield version, base, python, kind, region


if __name__ == "__main__":
    json.dump([ask(name, *question) for name in sys.argv[1:] for question in questions(name)], sys.stdout)
