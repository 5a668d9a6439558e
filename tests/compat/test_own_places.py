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


AGAIN = """
import boto3, json, os, signal, time, sagemaker

def kill():
    with open(os.environ["HERRINGBONE_HOME"] + "/service/personal.json") as file:
        process = json.load(file)["process"]
    with open("/proc/" + process.partition("@")[0] + "/environ") as file:
        environ = file.read()
    os.kill(int(process.partition("@")[0]), signal.SIGKILL)
    return process, environ

first, environ = kill()
while True:
    time.sleep(0.1)
    try:
        second, _ = kill()
    except (FileNotFoundError, ProcessLookupError):
        continue
    if second != first:
        break
deadline = time.monotonic() + 30
while True:
    try:
        print(len(boto3.client("s3").list_buckets()["Buckets"]), "hunter2" in environ)
        break
    except Exception:
        assert time.monotonic() < deadline
        time.sleep(0.3)
"""


def test_a_service_that_is_killed_twice_starts_again_and_has_no_tokens_of_a_notebook(run):
    """The second kill left notebooks without AWS. Jobs that another notebook created got the first one's tokens."""
    done = run(AGAIN, env={**NO_ACCOUNT, "HF_TOKEN": "hunter2"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1 False"


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
