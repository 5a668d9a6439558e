"""The requests to the engine for a host, compared with literals, and the options that are refused before."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.plans import plan_of

from herringbone.backends.docker import review
from herringbone.backends.docker.image import Image, choose_image
from herringbone.backends.docker.request import (
    HostNetwork,
    RequestContext,
    container_name,
    container_request,
    engine_network,
    network_interface,
    network_name,
    network_request,
)
from herringbone.backends.docker.start import JobObjects
from herringbone.backends.docker.tree import Mount
from herringbone.engine.client import Engine, EngineRefusal
from herringbone.plan.inputs import TrainingInput
from herringbone.plan.request import make_request
from herringbone_contract.errors import ImageError, LaunchError, UnsupportedError

BASE = Path("/home/me")
OURS = Image("herringbone/pytorch:2.13.0-cpu-0a", "sha256:0a", is_ours=True)
FOREIGN = Image("theirs:1", "sha256:0b", is_ours=False)
LABELS = {"dev.herringbone.job": "digits-1"}


def plan(
    inputs=None, *, type_="local", count=1, base=BASE, script="train.py", image_uri=None, distribution=None, **options
):
    hosts = {} if "instance_groups" in options else {"instance_type": type_, "instance_count": count}
    code = {} if script is None else {"entry_point": script, "source_dir": "src"}
    if (model_dir := options.pop("model_dir", None)) is not None:
        code["hyperparameters"] = {"model_dir": model_dir}
    given = {"image_uri": image_uri, "distribution": distribution, **code, **hosts, **options}
    return plan_of(make_request("PyTorch", given), base, inputs=inputs)


def context(job_plan, image=OURS, user="1000:100", network=None):
    return RequestContext(
        image=image,
        network=network or engine_network(job_plan),
        user=user,
        user_name="me",
        labels=LABELS,
        shm_bytes=8 << 30,
        stop_grace=110.0,
        passed_on={"HERRINGBONE_HEARTBEAT": "1"},
    )


def requested(job_plan, image=OURS, *, host=0, mounts=(), gpus=()):
    return container_request(job_plan, job_plan.hosts[host], context(job_plan, image), mounts=mounts, gpus=gpus)


def test_a_container_knows_the_path_of_its_cache_outside():
    environment = requested(plan(), mounts=[Mount("/home/me/cache/0a", "/opt/herringbone-cache")])["Env"]
    assert environment[-2:] == [
        "HERRINGBONE_CACHE=/opt/herringbone-cache",
        "HERRINGBONE_CACHE_OUTSIDE=/home/me/cache/0a",
    ]


def test_the_whole_request_for_a_single_host():
    job_plan = plan(environment={"API_TOKEN": "hunter2"})
    mounts = [Mount("/home/me/ml", "/opt/ml"), Mount("/data", "/opt/ml/input/data/training", read_only=True)]
    assert requested(job_plan, mounts=mounts) == {
        "Image": "sha256:0a",
        "Hostname": "algo-1",
        "User": "1000:100",
        "Labels": LABELS,
        "Env": [
            "TRAINING_JOB_NAME=digits-1",
            "HOME=/tmp",
            "USER=me",
            "LOGNAME=me",
            "HERRINGBONE_PRIVATE_FD=0",
            "HERRINGBONE_STOP_GRACE=110",
            "HERRINGBONE_HEARTBEAT=1",
        ],
        "Cmd": ["train"],
        "AttachStdin": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {
            "Mounts": [
                {"Type": "bind", "Source": "/home/me/ml", "Target": "/opt/ml", "ReadOnly": False},
                {"Type": "bind", "Source": "/data", "Target": "/opt/ml/input/data/training", "ReadOnly": True},
            ],
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},
            "ShmSize": 8 << 30,
            "LogConfig": {"Type": "none"},
            "NetworkMode": "default",
            "SecurityOpt": ["no-new-privileges"],
            "CapDrop": ["ALL"],
        },
    }
    assert container_name(job_plan, job_plan.hosts[0]) == "digits-1-algo-1"
    assert network_name(job_plan) is None


def test_a_container_of_an_ssh_machine_uses_the_machines_network_and_rendezvous():
    job_plan = plan(count=2)
    network = HostNetwork(mode="host", control="tcp:10.0.0.1:7590", interface="eth0")
    request = container_request(
        job_plan, job_plan.hosts[1], context(job_plan, network=network), mounts=(), gpus=("GPU-0a",)
    )
    assert request["HostConfig"]["NetworkMode"] == "host"
    assert "HERRINGBONE_CONTROL=tcp:10.0.0.1:7590" in request["Env"]
    assert request["HostConfig"]["DeviceRequests"] == [{"DeviceIDs": ["GPU-0a"], "Capabilities": [["gpu"]]}]
    assert "NetworkingConfig" not in request


def test_several_hosts_have_a_network_of_their_own():
    job_plan = plan(count=2)
    request = requested(job_plan, host=1)
    assert request["Hostname"] == "algo-2"
    assert request["HostConfig"]["NetworkMode"] == "digits-1-hosts"
    assert request["NetworkingConfig"] == {"EndpointsConfig": {"digits-1-hosts": {"Aliases": ["algo-2"]}}}
    assert "HERRINGBONE_CONTROL=tcp:algo-1:7590" in request["Env"]
    assert network_request(job_plan, LABELS) == {
        "Name": "digits-1-hosts",
        "CheckDuplicate": True,
        "Driver": "bridge",
        "Internal": False,
        "Labels": LABELS,
    }


def test_network_isolation_is_served():
    single = plan(enable_network_isolation=True)
    assert requested(single)["HostConfig"]["NetworkMode"] == "none"
    assert network_interface(single) == "lo"
    assert network_request(plan(count=2, enable_network_isolation=True), {})["Internal"] is True


def test_a_foreign_image_has_the_environment_in_its_request_and_no_private_line():
    request = requested(plan(environment={"MODE": "fast"}), FOREIGN)
    assert request["Env"][-1] == "MODE=fast"
    assert not [variable for variable in request["Env"] if "HERRINGBONE" in variable]
    assert request["OpenStdin"] is False
    assert "HOME=/tmp" in request["Env"]


def test_root_is_at_home_in_a_foreign_image():
    # An image with AWS's toolkit has the ssh keys there with which its hosts reach each other.
    job_plan = plan(image_uri=FOREIGN.name)
    request = container_request(job_plan, job_plan.hosts[0], context(job_plan, FOREIGN, user="0:0"), mounts=(), gpus=())
    assert request["Env"] == ["TRAINING_JOB_NAME=digits-1"]


def test_a_container_has_the_users_other_groups():
    """Data that the user read by a second group was a PermissionError in a container only."""
    job_plan = plan()
    given = replace(context(job_plan), groups=(4242, 5000))
    request = container_request(job_plan, job_plan.hosts[0], given, mounts=(), gpus=())
    assert request["HostConfig"]["GroupAdd"] == ["4242", "5000"]


@pytest.mark.parametrize(
    "message",
    ["could not find an available, non-overlapping IPv4 address pool", "all predefined address pools have been"],
)
def test_an_engine_without_free_networks_names_the_ways_out(message):
    class Full:
        def post(self, path, body):
            raise EngineRefusal(500, f"the container engine refuses POST {path}: {message}")

    job_plan = plan(instance_count=2)
    with pytest.raises(LaunchError, match=r"docker network prune.*default-address-pools"):
        JobObjects(Full()).create_network(job_plan, LABELS)


def test_options_that_reach_the_engine():
    job_plan = plan(shm_size="2g", container_entry_point=["python", "-m", "me"], container_arguments=["--fast"])
    request = requested(job_plan, gpus=("GPU-0a", "GPU-1b"))
    assert request["Entrypoint"] == ["python", "-m", "me"]
    assert request["Cmd"] == ["--fast"]
    assert request["HostConfig"]["ShmSize"] == 2 << 30
    assert request["HostConfig"]["DeviceRequests"] == [{"DeviceIDs": ["GPU-0a", "GPU-1b"], "Capabilities": [["gpu"]]}]
    assert requested(plan(container_arguments=["--fast"]))["Cmd"] == ["train", "--fast"]


@pytest.fixture
def base(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("")
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encrypt_inter_container_traffic": True}, "encrypt_inter_container_traffic: containers of one engine talk"),
        ({"output_kms_key": "k"}, "output_kms_key: the model is not encrypted"),
        ({"inputs": "gs://b/data"}, "gs://b/data is not on this machine, and local fetches no such address"),
        ({"inputs": TrainingInput("data", compression="Gzip")}, "channel training: compression"),
    ],
)
def test_unsupported_options_are_refused_by_name(base, options, message):
    with pytest.raises(UnsupportedError) as caught:
        review.check(plan(base=base, **options))
    assert message in str(caught.value)


def test_options_without_effect_are_named(base):
    job_plan = plan(base=base, role="r", volume_size=100, py_version="py311", framework_version="2.13")
    assert review.unused(job_plan) == ("py_version", "role", "volume_size")
    with_image = plan(base=base, image_uri="mine:1", framework_version="2.13")
    assert review.unused(with_image) == ("framework_version",)


def test_options_that_an_image_cannot_serve_are_refused():
    with pytest.raises(UnsupportedError, match="runs a script, and there is none: give entry_point"):
        review.check_image(plan(script=None, image_uri=OURS.name), OURS)
    review.check_image(plan(script=None, image_uri=FOREIGN.name), FOREIGN)
    with pytest.raises(UnsupportedError, match="bake_requirements: theirs:1 was not built by Herringbone"):
        review.check_image(plan(image_uri=FOREIGN.name, bake_requirements=True), FOREIGN)


def test_a_foreign_image_would_ignore_our_dataparallel_options():
    data_parallel = {"enabled": True, "wire": "bf16", "rails": ["eth0"]}
    job_plan = plan(image_uri=FOREIGN.name, distribution={"smdistributed": {"dataparallel": data_parallel}})
    with pytest.raises(UnsupportedError, match="theirs:1, which was not built by Herringbone, ") as caught:
        review.check_image(job_plan, FOREIGN)
    assert "dataparallel.wire: an addition of Herringbone's" in str(caught.value)
    assert "dataparallel.rails: an addition of Herringbone's" in str(caught.value)
    review.check_image(job_plan, OURS)
    review.check_image(plan(distribution={"smdistributed": {"dataparallel": {"enabled": True}}}), FOREIGN)
    shared = plan(count=2, model_dir="/opt/ml/shared/model")
    review.check_engine(shared, Engine("unix:///var/run/docker.sock"))
    with pytest.raises(UnsupportedError, match=r"tcp://gpu:2375 share no folder, so /opt/ml/shared/model would be"):
        review.check_engine(shared, Engine("tcp://gpu:2375"))


class Images:
    """An engine that has these images and no others."""

    def __init__(self, **labels):
        self.labels = labels

    def get(self, path, **query):
        if path == "/images/json":
            wanted = [label.split("=") for label in query["filters"]["label"]]
            return [
                {"Created": 1, "RepoTags": [f"herringbone/pytorch:{tag}"], "Labels": labels}
                for tag, labels in self.labels.items()
                if all(labels.get(name) == value for name, value in wanted)
            ]
        tag = path.split("/")[-2].rpartition(":")[2]
        if tag not in self.labels:
            raise EngineRefusal(404, "no such image")
        # An image that was built here and never pushed has none.
        digests = {"RepoDigests": [f"mine@sha256:of-{tag}"]} if tag == "pulled" else {"RepoDigests": []}
        return {"Id": f"sha256:{tag}", "Config": {"Labels": self.labels[tag] or None}, **digests}


PYTORCH = {"dev.herringbone.contract": "1", "dev.herringbone.framework": "pytorch", "dev.herringbone.version": "2.13.0"}


def test_the_image_of_a_job():
    engine = Images(
        cpu={**PYTORCH, "dev.herringbone.device": "cpu"}, cuda={**PYTORCH, "dev.herringbone.device": "cuda"}
    )
    assert choose_image(engine, plan()) == Image("herringbone/pytorch:cpu", "sha256:cpu", is_ours=True)
    assert choose_image(engine, plan(type_="local_gpu")).name == "herringbone/pytorch:cuda"
    assert choose_image(Images(mine={}), plan(image_uri="mine:mine")).is_ours is False
    assert choose_image(Images(pulled={}), plan(image_uri="mine:pulled")).digest == "mine@sha256:of-pulled"


def test_a_missing_image_is_reported_with_the_command_that_builds_it():
    with pytest.raises(ImageError, match=r"has no image 'gone:1'; pull it .`docker pull gone:1`."):
        choose_image(Images(), plan(image_uri="gone:1"))
    with pytest.raises(
        ImageError, match=r"no pytorch image for cuda; build one .`herringbone images build pytorch --device"
    ):
        choose_image(Images(), plan(type_="local_gpu"))
    with pytest.raises(ImageError, match=r"no pytorch image for cpu, version 2\.9; build one"):
        choose_image(Images(), plan(framework_version="2.9"))


def test_without_an_image_of_the_version_the_newest_one_runs_and_a_notice_names_it(capsys):
    engine = Images(cpu={**PYTORCH, "dev.herringbone.device": "cpu"})
    assert choose_image(engine, plan(framework_version="2.13")).name == "herringbone/pytorch:cpu"
    assert capsys.readouterr().err == ""
    assert choose_image(engine, plan(framework_version="2.9")).name == "herringbone/pytorch:cpu"
    assert capsys.readouterr().err == (
        "framework_version 2.9: the engine has no such pytorch image; using herringbone/pytorch:cpu\n"
    )


def test_groups_of_two_types_form_one_job():
    groups = [
        {"instance_group_name": "gpus", "instance_type": "local_gpu", "instance_count": 1},
        {"instance_group_name": "helpers", "instance_type": "local", "instance_count": 1},
    ]
    job_plan = plan(instance_groups=groups)
    assert [(host.name, host.instance_type) for host in job_plan.hosts] == [
        ("algo-1", "local_gpu"),
        ("algo-2", "local"),
    ]
    assert msgspec.to_builtins(job_plan)["backend"] == "local"


@pytest.mark.parametrize("image", [OURS, FOREIGN])
@pytest.mark.parametrize(
    ("user", "dropped"),
    [
        ("1000:100", ["ALL"]),
        ("4711", ["ALL"]),
        # chown, chmod, kill and a change of user stay: images start ranks over sshd with them.
        ("0:0", ["MKNOD", "NET_RAW", "SETFCAP", "SETPCAP"]),
    ],
)
def test_containers_get_no_privileges_that_training_does_not_need(image, user, dropped):
    job_plan = plan()
    request = container_request(job_plan, job_plan.hosts[0], context(job_plan, image, user=user), mounts=(), gpus=())
    assert request["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
    assert request["HostConfig"]["CapDrop"] == dropped
    assert "CapAdd" not in request["HostConfig"]
    assert "Privileged" not in request["HostConfig"]
