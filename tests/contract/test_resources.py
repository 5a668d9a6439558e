"""The hosts of a job, and the file that names this one."""

import json

import pytest

from herringbone_contract.errors import ContractError
from herringbone_contract.resources import HostGroup, ResourceConfig, host_names, natural_order, parse_resource_config


def test_the_first_host_is_the_same_everywhere():
    """Sort by number: as text, algo-10 comes before algo-2, and hosts would disagree about the first one."""
    hosts = host_names(11)
    assert natural_order(sorted(hosts)) == hosts
    assert natural_order(["node-b1", "10.0.0.2", "node-a12", "node-a2"]) == [
        "10.0.0.2",
        "node-a2",
        "node-a12",
        "node-b1",
    ]


CONFIG = ResourceConfig(
    current_host="algo-2",
    hosts=("algo-1", "algo-2", "algo-10"),
    current_instance_type="local_process",
    current_group_name="gpus",
    groups=(
        HostGroup("gpus", "local_process", ("algo-1", "algo-2")),
        HostGroup("helpers", "local_process", ("algo-10",)),
    ),
    network_interface="lo",
)


def test_the_file_in_the_service_s_spelling_and_back():
    assert CONFIG.to_json() == {
        "current_host": "algo-2",
        "current_instance_type": "local_process",
        "current_group_name": "gpus",
        "hosts": ["algo-1", "algo-10", "algo-2"],
        "instance_groups": [
            {"instance_group_name": "gpus", "instance_type": "local_process", "hosts": ["algo-1", "algo-2"]},
            {"instance_group_name": "helpers", "instance_type": "local_process", "hosts": ["algo-10"]},
        ],
        "network_interface_name": "lo",
    }
    assert parse_resource_config(json.dumps(CONFIG.to_json())) == CONFIG
    assert CONFIG.first_host == "algo-1"
    assert CONFIG.group("helpers").hosts == ("algo-10",)


def test_fields_that_other_tools_leave_out_are_optional():
    alone = parse_resource_config('{"current_host": "algo-1"}')
    assert alone.hosts == ("algo-1",)
    assert alone.group("homogeneousCluster").hosts == ("algo-1",)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"current_host": "a", "hosts": 3}', '{"hosts": ["a"]}', "null"])
def test_a_damaged_file(text):
    with pytest.raises(ContractError, match=r"resourceconfig\.json cannot be read"):
        parse_resource_config(text)


def test_contradictions():
    with pytest.raises(ContractError, match=r"current_host 'c' is not among hosts \['a', 'b'\]"):
        parse_resource_config('{"current_host": "c", "hosts": ["b", "a"]}')
    with pytest.raises(ContractError, match="no instance group 'tpus'; it has: gpus, helpers"):
        CONFIG.group("tpus")
