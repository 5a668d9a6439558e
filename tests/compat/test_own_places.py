"""A project of SDK v2 on own hosts names its buckets, its script and its places; the service there is killed."""

from __future__ import annotations

from tests.compat.test_account import NO_ACCOUNT

KILLED = """
import boto3, json, os, signal, sagemaker

s3 = boto3.client("s3")
with open(os.environ["HERRINGBONE_HOME"] + "/service/personal.json") as file:
    process = json.load(file)["process"]
s3.put_object(Bucket="team", Key="rows/a.csv", Body=b"1")
os.kill(int(process.partition("@")[0]), signal.SIGKILL)
print(s3.list_objects_v2(Bucket="team")["KeyCount"])
"""


def test_a_service_that_is_killed_starts_again_for_the_clients_of_a_notebook(run):
    done = run(KILLED, env=NO_ACCOUNT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1"
