"""Train by Airflow's SageMakerTrainingOperator as it is released: the environment sets only the endpoint and the key.

Usage: PYTHON tests/campaigns/service_airflow.py IMAGE, where PYTHON has apache-airflow and
apache-airflow-providers-amazon. `service_clients.py` runs it against a service of its own. By hand: the packages are
300 MB.
"""

import sys

from airflow.providers.amazon.aws.operators.sagemaker import SageMakerTrainingOperator


def training(task, program="train.py", **options):
    return SageMakerTrainingOperator(
        task_id=task,
        wait_for_completion=True,
        check_interval=2,
        config={
            "TrainingJobName": "by-airflow",
            # By its name: the operator asks IAM for the ARN.
            "RoleArn": "me",
            "AlgorithmSpecification": {"TrainingImage": sys.argv[1], "TrainingInputMode": "File"},
            "HyperParameters": {
                "sagemaker_program": program,
                "sagemaker_submit_directory": "s3://mine/sourcedir.tar.gz",
                "epochs": "2",
            },
            "InputDataConfig": [
                {
                    "ChannelName": "training",
                    "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://mine/data"}},
                }
            ],
            "OutputDataConfig": {"S3OutputPath": "s3://mine/out"},
            # Texts, as templates of a DAG make them: the operator turns them into numbers.
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": "1", "VolumeSizeInGB": "1"},
            "StoppingCondition": {"MaxRuntimeInSeconds": "600"},
        },
        **options,
    )


first = training("first").execute({})["Training"]
assert first["TrainingJobStatus"] == "Completed", first
assert first["TrainingJobName"] == "by-airflow"
# The name is taken now, so the operator finds it in ListTrainingJobs and adds a time.
second = training("second", print_log=False).execute({})["Training"]
assert second["TrainingJobName"].startswith("by-airflow-"), second
assert second["TrainingJobStatus"] == "Completed", second
try:
    training("fails", program="missing.py").execute({})
except Exception as error:  # noqa: BLE001 - the exceptions of Airflow's releases differ
    print("refused", error)
else:
    raise SystemExit("a job without its program has succeeded")
print("model", first["ModelArtifacts"]["S3ModelArtifacts"])
