"""Submit a training with `sagemaker` 2.x as it is released: only the endpoint and the key are set in the environment.

Usage: .venv-peer/bin/python tests/serve/fit_v2.py SCRIPT DATA. Code and data are uploaded to the bucket `mine`.
"""

import sys
from pathlib import Path

from sagemaker.pytorch import PyTorch
from sagemaker.s3 import S3Uploader

script = Path(sys.argv[1])
estimator = PyTorch(
    script.name,
    source_dir=str(script.parent),
    role="arn:aws:iam::123456789012:role/me",
    framework_version="2.1",
    py_version="py310",
    instance_type="ml.m5.large",
    instance_count=1,
    output_path="s3://mine/out",
    hyperparameters={"epochs": 2},
    metric_definitions=[{"Name": "weight", "Regex": "weight ([0-9.]+)"}],
)
data = S3Uploader.upload(sys.argv[2], "s3://mine/uploaded/data", sagemaker_session=estimator.sagemaker_session)
estimator.fit({"training": data}, wait=True, logs=True, job_name="by-v2")
print("weights", sorted(estimator.training_job_analytics.dataframe()["value"]))
print("model", estimator.model_data)
