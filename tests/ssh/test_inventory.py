"""The inventory's words, and which machine plays which host."""

import time

import pytest
import yaml

from herringbone import Estimator
from herringbone.backends.ssh.host_selection import choose, split_type
from herringbone.backends.ssh.inventory import Machine, parse_inventory
from herringbone.planning.plan import HostPlan
from herringbone_contract.errors import InputError, LaunchError, UnsupportedError


def test_settings_for_all_hold_where_a_machine_has_none_of_its_own():
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
        ({"hosts": [{"name": "a", "port": "22"}]}, "port: Expected int | null, got str"),
        ({"hosts": [{"name": "a", "port": 70_000}]}, "port: 70000 is no port"),
        ({"hosts": [{"name": "a", "runtime": "podman"}]}, "runtime: Invalid enum value 'podman'"),
        ({"hosts": ["a", "a"]}, "'a' stands there twice"),
        ({"hosts": ["-oProxyCommand=rm"]}, "name: '-oProxyCommand=rm' has characters"),
        ({"hosts": ["a"], "python": "python3; rm -rf /"}, "python: 'python3; rm -rf /' has characters"),
        ({"hosts": ["a"], "work_folder": "scratch"}, "work_folder: 'scratch' must begin with / or ~/"),
        ({"hosts": ["a"], "shared": ["nfs"]}, "shared: expected a list of absolute folders"),
    ],
)
def test_what_is_wrong_is_named(raw, message):
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


def test_too_few_machines_are_told_apart_from_too_few_free_ones():
    inventory = parse_inventory({"hosts": ["a", "b"]}, "h.yaml")
    with pytest.raises(InputError, match=r"3 hosts of 'ssh:h.yaml' are wanted, and it has 2 machines"):
        choose([host(1), host(2), host(3)], inventory)
    with pytest.raises(InputError, match="no machine is labelled so; labels are: none"):
        choose([host(1, "ssh:h.yaml#a100")], inventory)
    with pytest.raises(LaunchError, match="too few of 2 machines can be had:\n  b: runs digits-1 of me@laptop"):
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
    began = time.monotonic()
    plan = estimator.plan()
    # It takes 0.05 s; the limit is the promise, with room for a busy machine.
    assert time.monotonic() - began < 1.0
    assert [each.name for each in plan.hosts[:11]] == [f"algo-{number}" for number in range(1, 12)]
    assert plan.request["machines_if_free"] == {f"algo-{n}": f"gpu-{n}" for n in range(1, 201)}


def test_what_cannot_be_served_is_refused_before_anything_is_asked(folder):
    (folder / "hosts.yaml").write_text("hosts: [a, {name: b, runtime: docker}]")
    given = {"instance_type": "ssh:hosts.yaml"}
    with pytest.raises(InputError, match=r"inventory .*other.yaml: No such file"):
        Estimator("train.py", instance_type="ssh:other.yaml").plan()
    with pytest.raises(InputError, match="names no inventory"):
        Estimator("train.py", instance_type="ssh:").plan()
    with pytest.raises(UnsupportedError, match=r"checkpoint_s3_uri: .* is not in a folder that all machines see"):
        Estimator("train.py", **given, checkpoint_s3_uri=f"file://{folder}/checkpoints").plan()
    with pytest.raises(UnsupportedError, match="hosts of a job are all of one kind, not process on a, docker on b"):
        Estimator("train.py", **given, instance_count=2).plan()
    with pytest.raises(UnsupportedError, match="enable_network_isolation: hosts share their machine's network"):
        Estimator("train.py", **given, enable_network_isolation=True).plan()
    assert Estimator("train.py", **given, volume_size=50).plan().unused == ("volume_size",)
