"""Tests of the inventory file, and of the choice of machines for hosts."""

import time

import pytest
import yaml

from herringbone import Estimator
from herringbone.api.planning import plan_request
from herringbone.backends.ssh.backend import SshBackend
from herringbone.backends.ssh.machines.inventory import Machine, choose, parse_inventory, split_type
from herringbone.plan.plan import HostPlan
from herringbone.records.home import Home
from herringbone_contract.errors import InputError, LaunchError, UnsupportedError


def test_a_setting_for_all_machines_yields_to_the_setting_of_one():
    inventory = parse_inventory(
        {
            "user": "me",
            "work_folder": "/scratch/hb",
            "shared": ["/nfs/"],
            "hosts": [
                "gpu-10",
                {"name": "gpu-2", "host": "10.0.0.2", "port": 2222, "user": "root", "labels": ["a100"]},
            ],
        },
        "hosts.yaml",
    )
    assert inventory.machines == (
        Machine(name="gpu-2", host="10.0.0.2", port=2222, user="root", labels=("a100",), work_folder="/scratch/hb"),
        Machine(name="gpu-10", user="me", work_folder="/scratch/hb"),
    )
    assert inventory.shared == ("/nfs",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, "hosts.yaml: expected a mapping"),
        ({"host": ["a"]}, "hosts.yaml: host: no such key. Did you mean hosts?"),
        ({"hosts": []}, "hosts.yaml: hosts: expected a list with at least one machine"),
        ({"hosts": [{"host": "a"}]}, "hosts, number 1: name: missing"),
        ({"hosts": [{"name": "a", "prot": 3}]}, "number 1 \\(a\\): prot: no such key. Did you mean port?"),
        ({"hosts": ["a", {"name": "b", "gpu": 3}]}, "number 2 \\(b\\): gpu: no such key. Did you mean gpus?"),
        ({"hosts": [{"name": "a", "port": "22"}]}, "port: expected int, got str"),
        ({"hosts": [{"name": "a", "port": 70_000}]}, "port: 70000 is not a port"),
        ({"hosts": [{"name": "a", "runtime": "podman"}]}, "runtime: invalid enum value 'podman'"),
        ({"hosts": ["a", "a"]}, "'a' appears twice"),
        ({"hosts": ["-oProxyCommand=rm"]}, "name: '-oProxyCommand=rm' has characters"),
        ({"hosts": ["a"], "python": "python3; rm -rf /"}, "python: 'python3; rm -rf /' has characters"),
        ({"hosts": ["a"], "work_folder": "scratch"}, "work_folder: 'scratch' must begin with / or ~/"),
        ({"hosts": ["a"], "shared": ["nfs"]}, "shared: expected a list of absolute folders"),
    ],
)
def test_an_error_names_its_place_in_the_file(raw, message):
    with pytest.raises(InputError, match=message):
        parse_inventory(raw, "hosts.yaml")


def host(number: int, instance_type: str = "ssh:h.yaml") -> HostPlan:
    return HostPlan(name=f"algo-{number}", instance_type=instance_type, group="g", ranks=1)


def test_machines_are_taken_in_natural_order_and_labelled_hosts_choose_first():
    raw = {"hosts": [{"name": "b-10", "labels": ["a100"]}, {"name": "b-2", "labels": ["a100"]}, "b-1"]}
    inventory = parse_inventory(raw, "h.yaml")
    chosen = choose([host(1), host(2, "ssh:h.yaml#a100")], inventory)
    assert {name: machine.name for name, machine in chosen.items()} == {"algo-1": "b-1", "algo-2": "b-2"}
    chosen = choose([host(1), host(2)], inventory, busy={"b-2": "runs digits-1 of me@laptop"})
    assert [machine.name for machine in chosen.values()] == ["b-1", "b-10"]
    assert split_type("ssh:~/h.yaml#a100") == ("~/h.yaml", "a100")


def test_the_error_says_whether_machines_are_missing_or_busy():
    inventory = parse_inventory({"hosts": ["a", "b"]}, "h.yaml")
    with pytest.raises(InputError, match=r"the job needs 3 hosts of 'ssh:h.yaml', which has 2 machines"):
        choose([host(1), host(2), host(3)], inventory)
    with pytest.raises(InputError, match="no machine has the label 'a100'; labels are: none"):
        choose([host(1, "ssh:h.yaml#a100")], inventory)
    with pytest.raises(LaunchError, match="too few of 2 machines are available:\n  b: runs digits-1 of me@laptop"):
        choose([host(1), host(2)], inventory, busy={"b": "runs digits-1 of me@laptop"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    return tmp_path


def test_200_hosts_are_planned_at_once_in_natural_order(folder):
    names = [f"gpu-{number}" for number in range(1, 201)]
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"hosts": sorted(names)}))
    estimator = Estimator("train.py", instance_type="ssh:hosts.yaml", instance_count=200)
    started = time.monotonic()
    plan = estimator.plan()
    # It takes 0.05 s; the limit leaves room for a busy machine.
    assert time.monotonic() - started < 1.0
    assert [host.name for host in plan.hosts[:11]] == [f"algo-{number}" for number in range(1, 12)]
    assert plan.request["machines_if_free"] == {f"algo-{n}": f"gpu-{n}" for n in range(1, 201)}


def test_unsupported_options_are_refused_before_any_machine_is_asked(folder):
    (folder / "hosts.yaml").write_text("hosts: [a, {name: b, runtime: docker}]")
    options = {"instance_type": "ssh:hosts.yaml"}
    with pytest.raises(InputError, match=r"inventory .*other.yaml: No such file"):
        Estimator("train.py", instance_type="ssh:other.yaml").plan()
    with pytest.raises(InputError, match="names no inventory"):
        Estimator("train.py", instance_type="ssh:").plan()
    with pytest.raises(UnsupportedError, match=r"checkpoint_s3_uri: .* is not in a folder that all machines see"):
        Estimator("train.py", **options, checkpoint_s3_uri=f"file://{folder}/checkpoints").plan()
    with pytest.raises(UnsupportedError, match=r"tensorboard_output_config: .* is not in a folder that all"):
        Estimator("train.py", **options, tensorboard_output_config={"s3_output_path": f"{folder}/tb"}).plan()
    with pytest.raises(UnsupportedError, match="all hosts of a job have one runtime, not process on a, docker on b"):
        Estimator("train.py", **options, instance_count=2).plan()
    with pytest.raises(UnsupportedError, match="enable_network_isolation: hosts share their machine's network"):
        Estimator("train.py", **options, enable_network_isolation=True).plan()
    assert Estimator("train.py", **options, volume_size=50).plan().unused == ("volume_size",)


class OneImage:
    """An engine with an image that Herringbone did not build."""

    def get(self, path):
        return {"Id": "sha256:1", "Config": {"Labels": {}}}


@pytest.mark.parametrize("image", ["team/trainer:1", "123456789012.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2"])
def test_an_image_that_is_not_ours_is_refused_with_our_keys_when_the_job_is_planned(folder, image):
    """Only the submission looked at the image, after the machines had been locked."""
    (folder / "hosts.yaml").write_text("hosts: [{name: a, runtime: docker}, {name: b, runtime: docker}]")
    keys = {"enabled": True, "rails": ["eth0"]}
    estimator = Estimator(
        "train.py",
        instance_type="ssh:hosts.yaml",
        instance_count=2,
        image_uri=image,
        distribution={"smdistributed": {"dataparallel": keys}},
    )
    backend = SshBackend(Home(folder / "home"), transport=None, find=OneImage)
    with pytest.raises(UnsupportedError, match=r"not built by Herringbone, cannot serve[^$]*dataparallel.*rails"):
        plan_request(estimator._asked(None), backend)
