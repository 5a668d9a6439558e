"""Take jobs through their whole life: submit, follow, detach, attach from other processes, download the model."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from herringbone import ArchiveError, InputError, JobNotFoundError, TrainingJob, attach
from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.transfer import fetch_artifact
from herringbone.cli.__main__ import main
from herringbone.show.console import Console
from herringbone.system.progress import Progress
from tests.sagemaker.account import ACCOUNT, IMAGE, REGION, estimator, make_role
from tests.sagemaker.service import described, life, serving

boto3 = pytest.importorskip("boto3", reason="the extra aws is not installed")

GROUP = "/aws/sagemaker/TrainingJobs"
FIT = f"""
from herringbone import PyTorch
PyTorch("train.py", image_uri={IMAGE!r}, instance_type="ml.m5.large", role="training").fit("data", job_name="digits-1")
"""
COMMAND = "import sys; from herringbone.cli.__main__ import main; sys.exit(main())"


@pytest.fixture(autouse=True)
def project_folder(account, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2\n")


@pytest.fixture
def s3(account):
    client = boto3.client("s3")
    client.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
    return client


def packed(**files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return content.getvalue()


def put_log(boto, **lines):
    logs = boto.client("logs")
    logs.create_log_group(logGroupName=GROUP)
    now = int(time.time() * 1_000)
    for number, (host, texts) in enumerate(lines.items()):
        stream = f"digits-1/{host.replace('_', '-')}-1763719200"
        logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
        events = [{"timestamp": now + 2 * n + number, "message": text} for n, text in enumerate(texts)]
        logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events)


def test_from_fit_to_the_unpacked_model(backend, boto, s3, tmp_path, capsys):
    make_role(boto)
    put_log(boto, algo_1=["[algo-1:0] a", "[algo-1:0] c"], algo_2=["[algo-2:1] b", "[algo-2:1] d"])
    options = {"instance_count": 2, "output_path": "s3://mine/out", "environment": {"HUB_TOKEN": "hunter2"}}
    pytorch = estimator(type("", (), {"boto": boto}), **options)
    job = TrainingJob.submit(pytorch.plan("data", "digits-1"), backend)
    job.follow(Console())
    out, err = capsys.readouterr()
    *lines, end = out.splitlines()
    assert lines == ["[algo-1:0] a", "[algo-2:1] b", "[algo-1:0] c", "[algo-2:1] d"]
    assert end.startswith("job digits-1: Completed after ")
    assert (job.status, job.model_data) == ("Completed", "s3://mine/out/digits-1/output/model.tar.gz")
    assert [line.text for line in job.logs(host="algo-2")] == ["b", "d"]
    with pytest.raises(InputError, match=r"s3://mine/out/digits-1/output/model\.tar\.gz: there is no such object"):
        job.download_model(tmp_path / "model")
    s3.put_object(Bucket="mine", Key="out/digits-1/output/model.tar.gz", Body=packed(weights=b"123"))
    assert (attach("digits-1", boto).download_model(tmp_path / "model") / "weights").read_bytes() == b"123"
    assert "downloading" in capsys.readouterr().err
    assert main(["download", "digits-1", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(tmp_path / "again")}
    assert main(["download", "digits-1", "again"]) == 2
    assert "again already exists and is not overwritten" in capsys.readouterr().err
    assert "hunter2" not in err + json.dumps(job.describe()) + str(job.plan)


def test_other_parts_are_downloaded_and_the_row_is_removed(backend, boto, s3, tmp_path):
    make_role(boto)
    options = {"output_path": "s3://mine/out", "checkpoint_s3_uri": "s3://mine/kept"}
    pytorch = estimator(type("", (), {"boto": boto}), **options)
    job = TrainingJob.submit(pytorch.plan("data", "digits-1"), backend).wait()
    assert job.output_data == "s3://mine/out/digits-1/output/output.tar.gz"
    with pytest.raises(InputError, match=r"output\.tar\.gz: there is no such object"):
        job.download("output", tmp_path / "output")
    s3.put_object(Bucket="mine", Key="out/digits-1/output/output.tar.gz", Body=packed(plot=b"p"))
    s3.put_object(Bucket="mine", Key="kept/last.pt", Body=b"step 3")
    assert (job.download("output", tmp_path / "output") / "plot").read_bytes() == b"p"
    assert (job.download("checkpoints", tmp_path / "checkpoints") / "last.pt").read_bytes() == b"step 3"
    removal = job.remove()
    assert removal.elsewhere.startswith("SageMaker keeps its training jobs")
    with pytest.raises(JobNotFoundError):
        job.remove()
    assert attach("digits-1", boto).status == "Completed"


def fetch(boto, address, into):
    return fetch_artifact(AwsSession.of(boto), address, into, progress=Progress(io.StringIO()))


def test_an_uncompressed_model_is_a_folder(s3, boto, tmp_path):
    for key in ("out/model/a/b.bin", "out/model/c.bin", "out/model/", "out/model-of-another/d.bin"):
        s3.put_object(Bucket="mine", Key=key, Body=key.encode())
    folder = fetch(boto, "s3://mine/out/model", tmp_path)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.bin")) == ["a/b.bin", "c.bin"]
    with pytest.raises(InputError, match="s3://mine/gone/: there is no object"):
        fetch(boto, "s3://mine/gone/", tmp_path)
    s3.put_object(Bucket="mine", Key="out/wicked/../../evil", Body=b"")
    with pytest.raises(InputError, match=r"out/wicked/\.\./\.\./evil: the key has .*'\.\.' in its path"):
        fetch(boto, "s3://mine/out/wicked", tmp_path / "other")


def test_an_object_that_changes_before_the_download_is_refused(s3, boto, tmp_path):
    s3.put_object(Bucket="mine", Key="model.tar.gz", Body=b"first")
    changed = []

    def change(**_):
        if not changed:
            changed.append(boto3.client("s3").put_object(Bucket="mine", Key="model.tar.gz", Body=b"other"))

    boto.events.register("before-send.s3.GetObject", change)
    with pytest.raises(ArchiveError, match=r"s3://mine/model\.tar\.gz has changed since it was listed; try again"):
        fetch(boto, "s3://mine/model.tar.gz", tmp_path)


@pytest.fixture
def service(account, monkeypatch):
    """Serve training jobs, logs and prices from the scripted service, and everything else from the mock."""
    with serving() as service:
        for name in ("SAGEMAKER", "CLOUDWATCH_LOGS", "PRICING"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{name}", service.address)
        yield service


@pytest.fixture
def start():
    children = []

    def run(code, *arguments):
        command = [sys.executable, "-u", "-c", code, *arguments]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        children.append(subprocess.Popen(command, text=True, **pipes))
        return children[-1]

    yield run
    for child in children:
        child.kill()
        child.communicate()


def test_a_job_survives_detach_and_a_killed_follower_and_is_followed_to_its_end(service, start, boto):
    make_role(boto)
    client = start(FIT)
    while "digits-1" not in service.jobs:
        assert client.poll() is None, client.communicate()
        time.sleep(0.02)
    service.write("digits-1/algo-1-1", ["[algo-1:0] 1"])
    assert client.stdout.readline() == "[algo-1:0] 1\n"
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=60)
    assert f"job digits-1 created in {REGION}\n" in err
    assert 'job digits-1 goes on; follow it: herringbone logs -f digits-1, or attach("digits-1");' in err
    assert service.stopped == []

    follower = start(COMMAND, "logs", "-f", "digits-1")
    assert follower.stdout.readline() == "[algo-1:0] 1\n"
    service.write("digits-1/algo-1-1", ["[algo-1:0] 2"])
    follower.kill()
    follower.wait()

    (last,) = service.jobs["digits-1"]
    # The job ended an hour ago, because a reader waits for late lines of a job that has just ended (test_logs).
    service.jobs["digits-1"] = [last, {**last, **life(TrainingEndTime=time.time() - 3_600)[-1]}]
    service.write("digits-1/algo-1-1", ["[algo-1:0] 3"])
    out, err = start(COMMAND, "logs", "-f", "digits-1").communicate(timeout=60)
    assert (out, err) == ("".join(f"[algo-1:0] {number}\n" for number in (1, 2, 3)), "")
    assert attach("digits-1").status == "Completed"
    assert service.calls["CreateTrainingJob"] == 1


def test_the_command_line_finds_a_job_of_another_machine(service, capsys):
    def herringbone(*arguments):
        assert main(arguments) == 0
        return capsys.readouterr()

    name = "theirs"
    service.jobs[name] = [described(name, Environment={"HUB_TOKEN": "hunter2"}, SecondaryStatus="Training")]
    description = json.loads(herringbone("describe", name, "--json").out)
    assert description["TrainingJobArn"].startswith(f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:")
    assert description["Environment"] == {"HUB_TOKEN": "******"}
    out, err = herringbone("ls")
    assert (out.splitlines()[1].split()[:2], err) == ([name, "InProgress/Training"], "")
    assert herringbone("stop", name) == (
        f"job {name}: stopping (its end: herringbone logs -f {name})\n",
        "",
    )
    home = os.environ["HERRINGBONE_HOME"]
    assert subprocess.run(["grep", "-r", "hunter2", home], check=False).returncode == 1
