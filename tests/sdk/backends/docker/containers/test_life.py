"""The life of a job in containers, from submit to its model."""

import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.waiting import wait_until

from herringbone import InstanceGroup, JobFailedError, PyTorch, TrainingInput
from herringbone_contract.errors import UnsupportedError

pytestmark = pytest.mark.docker
TWO_RANKS = {"mpi": {"enabled": True, "processes_per_host": 2}}
WHO = "import os; print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'SM_CURRENT_HOST')))"


def texts(job, **filters):
    return [line.text for line in job.logs(**filters)]


def files_of(model_data):
    with tarfile.open(model_data.removeprefix("file://")) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def test_one_host_from_submit_to_its_model(submit, home, engine, of_home, monkeypatch, image):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    monkeypatch.setenv("AWS_REGION", "there")
    Path("data").mkdir()
    Path("data/train.csv").write_text("a,b")
    mode = Path("data/train.csv").stat().st_mode & 0o777
    job = submit(
        "import os, pathlib, time\n"
        "print(os.listdir(os.environ['SM_CHANNEL_TRAINING']), os.environ['SM_HP_EPOCHS'], os.environ['SM_MODEL_DIR'])\n"
        "print(*(os.environ[name][:3] for name in ('API_TOKEN', 'AWS_SECRET_ACCESS_KEY', 'AWS_REGION')))\n"
        "pathlib.Path('/opt/ml/model/w').write_text('weights')\n"
        "pathlib.Path('/opt/ml/output/data/o').write_text('out')\n"
        "pathlib.Path('/opt/ml/checkpoints/c').write_text('step 1'); pathlib.Path('/dev/shm/s').write_text('')\n"
        # In a layer of the job: the folder of the channel does not change.
        "data = pathlib.Path('/opt/ml/input/data/training'); (data / 'train.csv').chmod(0o755)\n"
        "(data / 'train.csv').rename(data / 'x'); (data / 'y').mkdir(); print((data / 'x').read_text(), flush=True)\n"
        "time.sleep(0.5)",
        inputs="file://data",
        job_name="a",
        hyperparameters={"epochs": 3},
        environment={"API_TOKEN": "hunter2", "AWS_REGION": "here"},
        checkpoint_s3_uri="file://kept",
    )
    wait_until(lambda: len(texts(job)) == 3)
    assert of_home() == ["a-algo-1"]
    inspected = json.dumps(engine.inspect_container("a-algo-1"))
    assert "hunter2" not in inspected
    assert "sesame" not in inspected
    assert job.wait().status == "Completed"
    assert texts(job) == ["['train.csv'] 3 /opt/ml/model", "hun ses her", "a,b"]
    assert [(path.name, path.stat().st_mode & 0o777) for path in Path("data").iterdir()] == [("train.csv", mode)]
    assert files_of(job.model_data) == {"w": b"weights"}
    described = job.describe()
    assert described["AlgorithmSpecification"]["TrainingImage"].partition("@")[0] in image
    assert described["Herringbone"]["ImageId"].startswith("sha256:")
    assert "Python" in described["Herringbone"]["Versions"]
    assert (home.job("a").output / "output.tar.gz").exists()
    assert Path("kept/c").read_text() == "step 1"
    assert (home.job("a").path / "controller.log").read_text() == ""
    written = b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())
    assert b"hunter2" not in written
    assert b"sesame" not in written
    assert {path.stat().st_uid for path in home.path.rglob("*")} == {os.getuid()}


def test_two_hosts_of_two_ranks(submit, of_home):
    job = submit(WHO, instance_count=2, distribution=TWO_RANKS, job_name="a").wait()
    assert sorted((line.host, line.rank, line.text) for line in job.logs() if line.rank is not None) == [
        ("algo-1", 0, "0 4 0 algo-1"),
        ("algo-1", 1, "1 4 1 algo-1"),
        ("algo-2", 2, "2 4 0 algo-2"),
        ("algo-2", 3, "3 4 1 algo-2"),
    ]
    assert of_home() == []


def test_groups_of_hosts_share_a_channel_and_know_their_group(submit):
    Path("data").mkdir()
    for name in "abc":
        Path("data", name).write_text(name)
    job = submit(
        "import os, pathlib\n"
        "files = sorted(pathlib.Path(os.environ['SM_CHANNEL_TRAINING']).iterdir())\n"
        "print(os.environ['SM_CURRENT_INSTANCE_GROUP'], ''.join(file.read_text() for file in files))",
        inputs=TrainingInput("data", "ShardedByS3Key"),
        instance_type=None,
        instance_groups=[InstanceGroup("first", "local", 1), InstanceGroup("second", "local", 1)],
    ).wait()
    assert sorted(line.text for line in job.logs() if line.rank is not None) == [
        "first ac",
        "second b",
    ]


def test_a_script_that_fails_is_reported_with_its_own_lines(submit):
    job = submit("def f():\n    raise ValueError('bad batch')\nf()", instance_count=2)
    with pytest.raises(JobFailedError, match=r"rank \d on algo-\d: ValueError: bad batch \(exit code 1\)"):
        job.follow()
    assert job.failure.frames[-1].source == "raise ValueError('bad batch')"


def test_stop_gives_the_script_its_time(submit):
    job = submit(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saving', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    wait_until(lambda: "ready" in texts(job))
    job.stop()
    assert job.wait(timeout=15).status == "Stopped"
    ready, told, saving = texts(job)
    assert (ready, saving) == ("ready", "saving")
    assert told.startswith("asked to go (SIGTERM): ranks get SIGTERM, which ends them without a checkpoint unless")
    assert job.model_data is None


def test_max_run_stops_the_job(submit):
    job = submit("import time; time.sleep(60)", max_run=2).wait(timeout=30)
    assert (job.status, job.secondary_status) == ("Stopped", "MaxRuntimeExceeded")


def test_isolation_leaves_a_single_host_without_a_network(submit):
    job = submit("import os; print(os.listdir('/sys/class/net'))", enable_network_isolation=True).wait()
    assert texts(job) == ["['lo']"]


def test_shm_has_the_requested_size(submit):
    job = submit("import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize)", shm_size="96m").wait()
    assert texts(job) == [str(96 << 20)]


def test_requirements_are_baked_once(submit, engine, monkeypatch, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "hb_tiny")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    Path("src").mkdir()
    Path("src/requirements.txt").write_text("--no-index\nhb-tiny\n")
    Path("src/train.py").write_text("import hb_tiny; print(hb_tiny.WORD)")
    before = baked_images(engine)
    try:
        for _ in range(2):
            job = submit("", source_dir="src", bake_requirements=True).wait()
            assert texts(job) == ["baked"]
        assert len(baked_images(engine) - before) == 1
    finally:
        for image in baked_images(engine) - before:
            engine.remove_image(image, force=True)


def baked_images(engine):
    """Return the images with requirements; other tests may make images of other kinds meanwhile."""
    marks = ("/requirements:", "-with-")
    return {image["Id"] for image in engine.images() if any(m in tag for tag in image["RepoTags"] or () for m in marks)}


def test_requirements_are_installed_at_the_start_once_per_image(submit, monkeypatch, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "hb_tiny")
    # A setting and a folder of this machine, which pip has in the container, too.
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    Path("src").mkdir()
    Path("src/requirements.txt").write_text("--no-index\nhb-tiny\n")
    Path("src/train.py").write_text("import hb_tiny; print(hb_tiny.WORD)")
    installed = []
    for _ in range(2):
        job = submit("", source_dir="src").wait()
        assert texts(job, rank=0) == ["baked"]
        installed.append(any("Successfully installed" in text for text in texts(job)))
    assert installed == [True, False]


def make_wheel(folder, name):
    import zipfile

    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "WORD = 'baked'\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


VOLUMES = (
    "VOLUME /opt/ml/ /opt/ml/model /opt/ml/output /opt/ml/output/data /opt/ml/checkpoints /opt/ml/code\n"
    "VOLUME /opt/ml/input/config /opt/ml/input/data/training/ /opt/ml/input/data/test /opt/ml/shared /data /tmp"
)


def test_volumes_of_an_image_cover_nothing_of_the_job(submit, derived, engine):
    """The engine laid empty volumes over the mounted folders: the job was Completed, its model and output gone."""
    image = derived(f"USER root\nRUN mkdir -p /data && chmod 777 /data\n{VOLUMES}")
    Path("data").mkdir()
    for name in "ab":
        Path("data", name).write_text(name)
    text = (
        "import os, pathlib, sys\n"
        "ml, host = pathlib.Path('/opt/ml'), os.environ['SM_CURRENT_HOST']\n"
        "read = sorted(path.read_text() for path in (ml / 'input/data').glob('*/*'))\n"
        "print(host, *read, (ml / 'input/config/hyperparameters.json').exists(), sys.argv[1:], flush=True)\n"
        "for folder in ('model', 'output/data', 'checkpoints', 'shared'):\n"
        "    (ml / folder / f'{host}-{len(list((ml / folder).iterdir()))}').write_text('')\n"
        "pathlib.Path('/data/x').write_text('')\n"
        "if host == 'algo-2' and len(list((ml / 'checkpoints').glob('algo-2-*'))) == 1:\n"
        "    print('again', flush=True); sys.exit(3)"
    )
    before = {volume["Name"] for volume in engine.volumes()["Volumes"] or ()}
    inputs = {"training": TrainingInput("file://data", "ShardedByS3Key"), "test": "file://data/a"}
    retry = {"max_retry_attempts": 1, "log_policies": {"again": "restart"}}
    job = submit(text, inputs=inputs, instance_count=2, image_uri=image, **retry)
    assert job.wait().status == "Completed", job.failure
    lines = {line.text for line in job.logs() if line.rank is not None}
    assert lines == {"algo-1 a a True []", "algo-2 a b True []", "again"}
    assert set(files_of(job.model_data)) == {"algo-1-0", "algo-2-0"}
    assert files_of(job.output_data).keys() >= {"algo-1-0"}
    # Other tests use the same engine: their volumes go with their containers.
    wait_until(lambda: {volume["Name"] for volume in engine.volumes()["Volumes"] or ()} <= before, why="volumes stay")


def test_a_volume_at_a_link_to_the_contracts_tree_is_refused(submit, derived):
    linked = derived("USER root\nRUN mkdir -p /a/b && ln -s /a/b /ab && ln -s ../../opt/ml/model /a/b/w\nVOLUME /ab/w")
    with pytest.raises(UnsupportedError, match=r"declares a volume at /ab/w. By links .* it is at /opt/ml/model"):
        submit("pass", image_uri=linked)
    inside = derived("VOLUME /opt/ml/model/part")
    with pytest.raises(UnsupportedError, match="declares a volume at /opt/ml/model/part"):
        submit("pass", image_uri=inside)


def test_volumes_of_an_image_of_a_remote_engine_cover_nothing(submit, derived, by_tcp):
    text = "import pathlib\nfor name in ('model', 'output/data'): pathlib.Path('/opt/ml', name, 'w').write_text('')"
    job = submit(text, image_uri=derived(VOLUMES)).wait()
    assert job.status == "Completed", job.failure
    assert (set(files_of(job.model_data)), set(files_of(job.output_data))) == ({"w"}, {"w"})


FOREIGN = """\
#!/usr/bin/env python3
import json, os, sys
config = json.load(open('/opt/ml/input/config/hyperparameters.json'))
print('their train', config['epochs'], os.environ['MODE'], os.environ.get('HERRINGBONE_PRIVATE_FD'), flush=True)
if config['epochs'] == '0':
    open('/opt/ml/output/failure', 'w').write('their own words')
    sys.exit(4)
open('/opt/ml/model/w', 'w').write('theirs')
"""


@pytest.fixture
def foreign(derived):
    """An image with a `train` of its own, as images with AWS's toolkit have, and without our label."""
    return derived(
        "USER root\nCOPY train /usr/local/bin/train\nRUN chmod 755 /usr/local/bin/train\n"
        'ENV PATH=/usr/local/bin:$PATH\nLABEL dev.herringbone.contract=""\nVOLUME /opt/ml/model /opt/ml/output',
        train=FOREIGN,
    )


def test_a_foreign_image_runs_by_the_contract_alone(foreign, home):
    estimator = PyTorch(
        "train.py",
        source_dir="src",
        instance_type="local",
        image_uri=foreign,
        hyperparameters={"epochs": 3},
        environment={"MODE": "fast"},
    )
    Path("src").mkdir()
    Path("src/train.py").write_text("")
    job = estimator.fit(logs=False)
    assert [(line.host, line.rank, line.text) for line in job.logs()] == [("algo-1", None, "their train 3 fast None")]
    assert files_of(job.model_data) == {"w": b"theirs"}
    estimator.set_hyperparameters(epochs=0)
    with pytest.raises(JobFailedError, match=r"algo-1: exit code 4: their own words"):
        estimator.fit(logs=False)


@pytest.mark.parametrize("way", ["by_tcp", "by_ssh"])
def test_files_are_copied_to_a_remote_engine_and_back(submit, request, way):
    request.getfixturevalue(way)
    Path("data").mkdir()
    for name in "ab":
        Path("data", name).write_bytes(name.encode() * 300_000)
    Path("kept").mkdir()
    Path("kept/step-1").write_text("1")
    job = submit(
        "import os, pathlib\n"
        "host = os.environ['SM_CURRENT_HOST']\n"
        "(path,) = pathlib.Path('/opt/ml/input/data/training').iterdir()\n"
        "print(path.name, len(path.read_bytes()), path.is_symlink(), os.listdir('/opt/ml/checkpoints'), os.getuid())\n"
        "pathlib.Path('/opt/ml/model', host).write_bytes(bytes(3_000_000))\n"
        "pathlib.Path('/opt/ml/model/link-' + host).symlink_to(host)\n"
        "pathlib.Path('/opt/ml/checkpoints', host).write_text('2')",
        inputs=TrainingInput("data", "ShardedByS3Key"),
        instance_count=2,
        checkpoint_s3_uri="file://kept",
    ).wait()
    assert job.status == "Completed", job.failure
    assert sorted(line.text for line in job.logs() if line.rank is not None) == [
        f"a 300000 False ['step-1'] {os.getuid()}",
        f"b 300000 False ['step-1'] {os.getuid()}",
    ]
    files = files_of(job.model_data)
    assert sorted(files) == ["algo-1", "algo-2", "link-algo-1", "link-algo-2"]
    assert files["algo-2"] == bytes(3_000_000)
    assert sorted(os.listdir("kept")) == ["algo-1", "algo-2", "step-1"]


def test_checkpoints_that_are_not_kept_are_removed_in_the_container(submit):
    """The files are those of the container's user, whom only the container itself may act for."""
    text = (
        "import pathlib, time, zipfile\n"
        "time.sleep(1.5)\n"
        "for step in range(4):\n"
        "    with zipfile.ZipFile(f'/opt/ml/checkpoints/step-{step}.pt', 'w') as archive:\n"
        "        archive.writestr('data.pkl', b'x')\n"
        "    time.sleep(0.02)\n"
        "pathlib.Path('/opt/ml/checkpoints/best.pt').symlink_to('/opt/ml/checkpoints/step-1.pt')\n"
    )
    Path("own").mkdir()
    job = submit(text, keep_checkpoints={"last": 1}, checkpoint_s3_uri=str(Path("own").resolve()))
    assert job.wait().status == "Completed", job.failure
    assert sorted(path.name for path in Path("own").glob("step-*.pt")) == ["step-1.pt", "step-3.pt"]
    assert "checkpoint step-2.pt is removed, because step-3.pt is whole" in [line.text for line in job.logs()]
