"""Submit a training with `sagemaker` 3.x as it is released: only the endpoint and the key are set in the environment.

Usage: PYTHON tests/campaigns/service_v3.py SCRIPT DATA IMAGE, where PYTHON has sagemaker-train 1.27.0,
and a service with `--backend local` and a bucket `mine`, such as that of `service_clients.py`. SCRIPT is in a folder of
its own. By hand: the packages are large.
"""

import sys
from pathlib import Path

from sagemaker.core.helper.session_helper import Session
from sagemaker.core.training.configs import Compute, InputData, OutputDataConfig, SourceCode
from sagemaker.train import ModelTrainer

script, data = Path(sys.argv[1]), sys.argv[2]
session = Session(default_bucket="mine")
trainer = ModelTrainer(
    sagemaker_session=session,
    role="arn:aws:iam::123456789012:role/me",
    training_image=sys.argv[3],
    source_code=SourceCode(source_dir=str(script.parent), entry_script=script.name),
    compute=Compute(instance_type="ml.m5.large", instance_count=1),
    output_data_config=OutputDataConfig(s3_output_path="s3://mine/out"),
    hyperparameters={"epochs": 2},
    base_job_name="by-v3",
)
trainer.train(input_data_config=[InputData(channel_name="training", data_source=data)], wait=True, logs=True)
print("model", trainer._latest_training_job.model_artifacts.s3_model_artifacts)
