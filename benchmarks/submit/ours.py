"""Submit a folder once with this SDK. Usage: python ours.py FOLDER JOB_NAME IMAGE ROLE."""

import sys
import time

import boto3
from clock import Clock

from herringbone import PyTorch

folder, name, image, role = sys.argv[1:]
boto = boto3.Session()
clock = Clock(boto)
estimator = PyTorch(
    "train.py",
    source_dir=folder,
    image_uri=image,
    role=role,
    instance_type="ml.m5.large",
    sagemaker_session=boto,
)
started = time.perf_counter()
estimator.fit({"training": "s3://data/training"}, wait=False, job_name=name)
clock.report(started)
