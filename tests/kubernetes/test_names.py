"""Names of objects: short enough with every suffix, lower case, and different for different jobs."""

from __future__ import annotations

import re

import hypothesis
import pytest
from hypothesis import strategies

from herringbone.backends.kubernetes.claims import parse_place
from herringbone.backends.kubernetes.names import ObjectNames, namespace_of
from herringbone_contract.constants import JOB_NAME_PATTERN
from herringbone_contract.errors import OptionError, UnsupportedError
from tests.kubernetes.planning import kubernetes_plan

# A Service's name, which has the strictest rule.
SERVICE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@hypothesis.given(strategies.from_regex(JOB_NAME_PATTERN, fullmatch=True).filter(lambda name: len(name) <= 63))
def test_every_name_is_one_that_kubernetes_takes(name: str) -> None:
    names = ObjectNames(name, 999)
    for made in (names.job, names.hosts, names.host("algo-100000"), f"{names.job}-controller"):
        assert SERVICE.fullmatch(made), made
        assert len(made) <= 63, made
    assert all(len(value) <= 63 for value in names.labels("host", "algo-1").values())


@pytest.mark.parametrize(
    ("one", "other"),
    [("Digits", "digits"), ("a" * 63, "a" * 62 + "b"), (f"{'a' * 40}-1", f"{'a' * 40}-2"), ("a-B", "A-b")],
)
def test_jobs_whose_names_become_alike_have_different_objects(one: str, other: str) -> None:
    assert ObjectNames(one).job != ObjectNames(other).job
    assert ObjectNames(one).label != ObjectNames(other).label


def test_a_short_name_stays_readable() -> None:
    names = ObjectNames("2026-digits", 3)
    assert (names.job, names.host("algo-2")) == ("hb-2026-digits", "hb-2026-digits-a3-algo-2")


@pytest.mark.parametrize("instance_type", ["k8s:", "k8s:Team", "k8s:a/b", "k8s:a.b", "k8s:-a", f"k8s:{'a' * 64}"])
def test_a_namespace_is_checked(tmp_path, instance_type: str) -> None:
    with pytest.raises(OptionError, match="not the name of a namespace; write for example 'k8s:team-a'"):
        namespace_of(kubernetes_plan(tmp_path, instance_type=instance_type))


def test_a_job_has_one_namespace(tmp_path) -> None:
    groups = [
        {"instance_group_name": name, "instance_type": f"k8s:{name}", "instance_count": 1} for name in ("one", "two")
    ]
    plan = kubernetes_plan(tmp_path, instance_type=None, instance_count=None, instance_groups=groups)
    with pytest.raises(UnsupportedError, match="one namespace, not k8s:one and k8s:two"):
        namespace_of(plan)


@pytest.mark.parametrize(
    "address", ["pvc://", "pvc:///a", "pvc://A/b", "pvc://a/../b", "s3://a/b", "/a", "pvc://a_b/c"]
)
def test_an_address_that_is_no_folder_of_a_claim(address: str) -> None:
    with pytest.raises(OptionError, match=r"output_path: .* is no folder of a claim; write pvc://CLAIM/FOLDER"):
        parse_place("output_path", address)
