"""Search with `sagemaker` 2.x as it is released: only the endpoint and the key are set in the environment.

Usage: .venv-peer/bin/python tests/serve/tune_v2.py SCRIPT. The code is uploaded to the bucket `mine`.
"""

import sys
from pathlib import Path

from sagemaker.pytorch import PyTorch
from sagemaker.tuner import CategoricalParameter, ContinuousParameter, HyperparameterTuner

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
)
tuner = HyperparameterTuner(
    estimator,
    "loss",
    {"point": ContinuousParameter(0, 10), "word": CategoricalParameter(["good", "bad"])},
    [{"Name": "loss", "Regex": "loss ([0-9.]+);"}],
    strategy="Random",
    objective_type="Minimize",
    max_jobs=2,
    max_parallel_jobs=2,
)
tuner.fit(job_name="by-v2-tuner", wait=True)
attached = HyperparameterTuner.attach("by-v2-tuner")
print("best", tuner.best_training_job())
print("rows", sorted(trial["TrainingJobName"] for trial in attached.analytics().training_job_summaries()))
