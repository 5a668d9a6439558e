"""The option `kubernetes`: each value is one that an API server takes, or is refused with what to write."""

import pytest

from herringbone.plan.options.typed import parse_options
from herringbone_contract.errors import OptionError

ALL = {
    "context": "prod",
    "local_queue": "team-a",
    "priority_class": "high",
    "node_selector": {"example.com/pool": "gpu", "zone": ""},
    "tolerations": [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
        {"operator": "Exists"},
        {"key": "team", "value": "a"},
    ],
    "gpu_resource": "amd.com/gpu",
    "cpu": "500m",
    "memory": "1.5Gi",
    "volumes": {"data": "/data", "more": "/mnt/more"},
    "service_account": "herringbone",
    "image_pull_secrets": ["registry"],
    "labels": {"team": "a"},
    "annotations": {"example.com/note": "any text: yes"},
    "workload": "trainjob",
    "runtime": "torch-distributed",
}


def test_all_values_are_kept():
    settings = parse_options({"kubernetes": ALL}).kubernetes
    assert settings.tolerations[0].seconds == 60
    assert settings.volumes == ALL["volumes"]
    assert [parse_options({"kubernetes": {"cpu": cpu}}).kubernetes.cpu for cpu in (8, 0.5, "8")] == [8, 0.5, "8"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"local-queue": "a"},
            r"no such key 'local-queue', did you mean 'local_queue'\?; the keys are context",
        ),
        (
            {"local_queue": "Team A"},
            "kubernetes: local_queue 'Team A' is not one that Kubernetes takes; write the name",
        ),
        ({"priority_class": "-x"}, "priority_class '-x'"),
        ({"image_pull_secrets": ["a b"]}, "image_pull_secrets or volumes 'a b'"),
        ({"user": 0}, "kubernetes: user 0 is root, or no uid; give one from 1 on"),
        ({"user": 1 << 31}, "kubernetes: user 2147483648 is root, or no uid"),
        ({"cpu": 0}, "cpu '0' is not one that Kubernetes takes; write an amount above 0"),
        ({"cpu": -1}, "cpu '-1'"),
        ({"cpu": "8 cores"}, "cpu '8 cores'"),
        ({"memory": "64GB"}, "memory '64GB'"),
        ({"memory": "0Gi"}, "memory '0Gi'"),
        ({"gpu_resource": "nvidia.com/gpu/2"}, "gpu_resource 'nvidia.com/gpu/2'"),
        ({"node_selector": {"a b": "c"}}, "the key of node_selector 'a b'"),
        ({"node_selector": {"a": "b c"}}, "node_selector 'a' has the value 'b c'; Kubernetes takes at most 63"),
        ({"labels": {"a": "x" * 64}}, "labels 'a' has the value"),
        ({"labels": {"dev.herringbone/job": "a"}}, r"Herringbone sets dev.herringbone/\* itself"),
        ({"annotations": {"a/b/c": "x"}}, "the key of annotations 'a/b/c'"),
        ({"volumes": {"data": "data"}}, "claim data at 'data': it is no absolute path"),
        (
            {"volumes": {"data": "/opt/ml/input"}},
            "claim data at '/opt/ml/input': the job or its image needs /opt/ml",
        ),
        ({"volumes": {"data": "/a/../b"}}, "it is no absolute path of plain letters"),
        ({"volumes": {"data": "/./usr/lib"}}, "the job or its image needs /usr"),
        ({"volumes": {"data": "/opt"}}, "the job or its image needs /opt"),
        ({"volumes": {"a": "/data", "b": "/data/"}}, "two claims have the same folder"),
        ({"memory": "64"}, "an amount with its unit"),
        ({"memory": "512m"}, "an amount with its unit"),
        ({"gpu_resource": "cpu"}, "a resource of a device plugin"),
        ({"volumes": {"a": "/x", "b": "/x"}}, "two claims have the same folder"),
        ({"tolerations": [{"operator": "Exists", "value": "a"}]}, "operator 'Exists' has no value"),
        ({"tolerations": [{"value": "a"}]}, "give a key, or operator 'Exists'"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "tolerationSeconds goes with effect 'NoExecute'"),
        ({"tolerations": [{"key": "a", "seconds": 1}]}, "no such key 'seconds'"),
        ({"workload": "pod"}, "kubernetes.workload: 'pod' is none of 'job', 'jobset', 'trainjob'"),
        ({"tolerations": [{"op": "Exists"}]}, r"tolerations\[0\]: no such key 'op'; the keys are key, operator, value"),
        ({"tolerations": [{"operator": "Exist"}]}, "'Exist' is none of 'Equal', 'Exists', did you mean 'Exists'"),
        ({"tolerations": [{"key": "a b"}]}, "a key of tolerations 'a b'"),
        ({"tolerations": [{"key": "a", "value": "b c"}]}, "a value of tolerations 'b c'"),
        ({"node_selector": {"a": True}}, r"kubernetes.node_selector\['a'\]: expected str, got bool"),
        ({"local_queue": "q" * 64}, "at most 63 characters: it is the value of a label, too"),
        ({"service_account": "a..b"}, "service_account 'a..b'"),
        ({"volumes": {"a.-b": "/data"}}, "image_pull_secrets or volumes 'a.-b'"),
        ({"labels": {f"{'a' * 254}/x": "1"}}, "the key of labels"),
        ({"labels": {"batch.kubernetes.io/job-name": "1"}}, "the cluster's controllers set it; choose another key"),
        ({"annotations": {"a": "é" * (128 << 10)}}, "annotations have 262145 bytes together"),
        ({"runtime": "torch-distributed"}, "runtime is for workload 'trainjob'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(settings, message):
    with pytest.raises(OptionError, match=message):
        parse_options({"kubernetes": settings})
