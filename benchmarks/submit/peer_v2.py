"""Submit a folder once with `sagemaker` 2.x. Usage: .venv-peer/bin/python peer_v2.py FOLDER JOB_NAME IMAGE ROLE."""

import os
import sys
import time

import boto3
import sagemaker
from clock import Clock
from sagemaker.pytorch import PyTorch

folder, name, image, role = sys.argv[1:]


def to_the_mock(request, **_):
    """Send requests for STS to the mock: the peer ignores AWS_ENDPOINT_URL for STS."""
    request.url = os.environ["AWS_ENDPOINT_URL"]


boto = boto3.Session()
boto.events.register("before-send.sts", to_the_mock)
clock = Clock(boto)
estimator = PyTorch(
    "train.py",
    source_dir=folder,
    image_uri=image,
    role=role,
    instance_type="ml.m5.large",
    instance_count=1,
    sagemaker_session=sagemaker.Session(boto_session=boto),
)
started = time.perf_counter()
estimator.fit({"training": "s3://data/training"}, wait=False, job_name=name)
clock.report(started)
