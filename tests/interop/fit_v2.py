"""Run one job of `sagemaker` 2.x in its own local mode; code and model stay on this machine.

Usage: .venv-peer/bin/python tests/interop/fit_v2.py JSON, in the environment of `tests.interop.peer`. The JSON has
`image_uri`, `script`, `instance_count` and optionally `distribution`, `hyperparameters`, `environment`, `inputs`.
Prints the times before and after fit(), and the location of the model.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import sagemaker.session
from sagemaker.local import LocalSession
from sagemaker.pytorch import PyTorch

# The constructor sends GetCallerIdentity to an address that no setting changes.
sagemaker.session.sts_regional_endpoint = lambda region: os.environ["STS_URL"]

job = json.loads(sys.argv[1])
script, inputs = Path(job.pop("script")), job.pop("inputs", None)
session = LocalSession()
session.config = {"local": {"local_code": True}}
estimator = PyTorch(
    script.name,
    source_dir=str(script.parent),
    role="arn:aws:iam::123456789012:role/none",
    instance_type="local",
    output_path=f"file://{tempfile.mkdtemp()}",
    sagemaker_session=session,
    **job,
)
print("fit", time.time())
estimator.fit(inputs)
print("done", time.time())
print("model", estimator.model_data)
