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


NAMED = """
import io, json, sagemaker, tarfile

session, packed = sagemaker.Session(), io.BytesIO()
with tarfile.open(fileobj=packed, mode="w:gz") as archive:
    archive.add("say.py")
code = session.upload_string_as_file_body(packed.getvalue(), "team", "code/sourcedir.tar.gz")
values = {"sagemaker_program": "say.py", "sagemaker_submit_directory": code, "name": "x"}
encoded = {name: json.dumps(value) for name, value in values.items()}
estimator = sagemaker.estimator.Estimator("mine:1", "role", 1, "local", hyperparameters=encoded)
estimator.fit()
"""


def test_hyperparameters_name_the_script_of_an_image(run, tmp_path):
    (tmp_path / "say.py").write_text("import os, sys; print('got', sys.argv[1:], os.environ['SM_MODULE_DIR'])")
    done = run(NAMED, env=NO_ACCOUNT)
    assert done.returncode == 0, done.stderr
    assert "got ['--name', 'x'] s3://team/code/sourcedir.tar.gz" in done.stdout
