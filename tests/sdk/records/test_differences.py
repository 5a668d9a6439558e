"""The settings in which jobs differ: names of hyperparameters, paths, and what Herringbone adds."""

import msgspec
from tests.plans import plan_of

from herringbone.plan.request import make_request, request_of
from herringbone.records.differences import differences, settings_of

CODE = {"entry_point": "/code/train.py", "instance_type": "local_process"}


def settings(folder="/a", **options):
    return settings_of(plan_of(make_request("PyTorch", {**CODE, **options}), folder).to_dict(), {})


def test_a_hyperparameter_of_the_name_of_a_setting_is_another_row():
    one, other = (settings(hyperparameters={"estimator": name, "instance_type": "x"}) for name in ("forest", "tree"))
    assert differences([one, other]) == [("hyperparameters.estimator", "forest", "tree")]
    assert (one["estimator"], one["hyperparameters.instance_type"]) == ("PyTorch", "x")


def test_paths_are_compared_where_they_lead_to():
    relative = make_request("PyTorch", {**CODE, "checkpoint_s3_uri": "ck", "output_path": "file://out"})
    again = request_of(plan_of(relative, "/a"))
    jobs = [settings_of(plan_of(one, folder).to_dict(), {}) for one, folder in ((relative, "/a"), (again, "/b"))]
    assert differences(jobs) == []
    assert differences([jobs[0], settings_of(plan_of(relative, "/b").to_dict(), {})]) == [
        ("options.checkpoint_s3_uri", "/a/ck", "/b/ck"),
        ("options.output_path", "/a/out", "/b/out"),
    ]


def test_what_herringbone_adds_is_no_setting():
    plan = plan_of(make_request("PyTorch", {**CODE, "environment": {"A": "b"}, "dependencies": ["/lib"]}), "/a")
    compared = msgspec.structs.replace(plan.options, environment={"A": "b", "HERRINGBONE_COMPARE": "on"})
    one, other = (settings_of(each.to_dict(), {}) for each in (plan, msgspec.structs.replace(plan, options=compared)))
    assert differences([one, other]) == []
    assert [name for name in one if "dependencies" in name] == ["source.dependencies"]
