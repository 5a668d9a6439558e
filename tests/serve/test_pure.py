"""Limits, lists, descriptions and settings, by literals."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from herringbone.events.kinds import State
from herringbone.records.index import JobRecord
from herringbone.serve import listing, model, wire
from herringbone.serve.calls import Call
from herringbone.serve.describe import transitions
from herringbone.serve.errors import ApiError, error_of
from herringbone.serve.identity import Identity
from herringbone.serve.limits import Replays
from herringbone.serve.records import Audit
from herringbone.serve.settings import HostType, Mapping, Settings, check_account, parse_mapping
from herringbone.serve.signing.keys import AccessKey, KeyFile
from herringbone_contract import errors
from herringbone_contract.errors import InputError


def test_a_signed_change_counts_once_and_a_read_for_five_seconds():
    replays = Replays(started=100.0)
    replays.check("change", 100, 100.2, changes=True)
    replays.check("read", 100, 100.2, changes=False)
    replays.check("read", 100, 105.0, changes=False)
    for name, now, changes in (("change", 100.2, True), ("change", 101.0, True), ("read", 106.0, False)):
        with pytest.raises(ApiError, match="received before") as caught:
            replays.check(name, 100, now, changes=changes)
        # AWS's SDKs sign the call again and repeat it.
        assert caught.value.code == "ThrottlingException"


def outcome(replays, together):
    together.wait(60)
    try:
        replays.check("change", 1000, 1000.0, changes=True)
    except Exception as error:  # noqa: BLE001 - its kind is asserted
        return type(error)
    return None


def test_copies_of_a_change_that_arrive_together_count_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(20):
                replays, together = Replays(), Barrier(8)
                for number in range(500):
                    replays.check(str(number), 0, 0.0, changes=True)
                outcomes = list(pool.map(outcome, [replays] * 8, [together] * 8))
                assert sorted(outcomes, key=str) == [ApiError] * 7 + [None]
    finally:
        sys.setswitchinterval(interval)


def test_what_was_signed_before_the_start_may_have_run_before():
    replays = Replays(started=100.9)
    replays.check("read", 99, 101.0, changes=False)
    replays.check("same second", 100, 101.0, changes=True)
    with pytest.raises(ApiError, match="signed before the service started"):
        replays.check("change", 99, 101.0, changes=True)


def test_signatures_are_forgotten_when_they_are_no_longer_valid():
    replays = Replays()
    for number in range(10_000):
        replays.check(str(number), number, float(number), changes=True)
    assert len(replays) <= 601


ENTRIES = [{"Name": name, "At": at} for name, at in (("a", 3), ("b", 1), ("c", 1), ("d", None), ("e", "x"))]


def pages(entries, size, *, descending=False, scope="ada"):
    token, answer = None, []
    while True:
        chosen, token = listing.page(
            entries,
            key=lambda entry: entry["At"],
            name="Name",
            descending=descending,
            token=token,
            size=size,
            scope=scope,
        )
        answer.append("".join(entry["Name"] for entry in chosen))
        if token is None:
            return answer


def test_pages_hold_every_entry_once():
    assert pages(ENTRIES, 2) == ["db", "ca", "e"]
    assert pages(ENTRIES, 2, descending=True) == ["ea", "cb", "d"]
    assert pages(ENTRIES, 5) == ["dbcae"]
    assert pages([], 5) == [""]


def test_an_entry_that_comes_between_two_pages_shifts_nothing():
    arguments = {"key": lambda entry: entry["At"], "name": "Name", "descending": True, "size": 2, "scope": "s"}
    first, token = listing.page(ENTRIES[:3], token=None, **arguments)
    second, _ = listing.page([{"Name": "new", "At": 9}, *ENTRIES[:3]], token=token, **arguments)
    assert [entry["Name"] for entry in [*first, *second]] == ["a", "c", "b"]


@pytest.mark.parametrize("token", ["", "x", "é", "W10=", "WyJib2IiLDEsImEiXQ==", "AAAA" * 1000])
def test_tokens_of_other_lists_are_refused(token):
    with pytest.raises(ApiError, match="NextToken"):
        listing.page(ENTRIES, key=lambda _: 1, name="Name", descending=False, token=token, size=1, scope="ada")


JOB = {"HyperParameters": {"lr": "0.01", "a.b": "1"}, "Tags": [{"Key": "team", "Value": "a"}], "CreationTime": 1.7e9}


@pytest.mark.parametrize(
    ("name", "operator", "value", "expected"),
    [
        ("HyperParameters.lr", "LessThan", "0.1", True),
        ("HyperParameters.lr", "GreaterThan", "0.1", False),
        ("HyperParameters.a.b", "Equals", "1", True),
        ("HyperParameters.lr", "GreaterThan", "word", False),
        ("Tags.team", "In", "b, a", True),
        ("Tags.other", "NotEquals", "a", True),
        ("Tags.other", "NotExists", None, True),
        ("CreationTime", "GreaterThan", "2023-01-01T00:00:00Z", True),
        ("CreationTime", "LessThanOrEqualTo", "2023-01-01T00:00:00Z", False),
        ("Tags.team", "Contains", "a", True),
    ],
)
def test_search_filters(name, operator, value, expected):
    filter_ = {"Name": name, "Operator": operator} | ({} if value is None else {"Value": value})
    assert listing.found({"Filters": [filter_]}, JOB) is expected
    assert listing.found({"SubExpressions": [{"Filters": [filter_]}], "Operator": "Or"}, JOB) is expected


def row(**columns):
    return JobRecord(**{"name": "a", "backend": "local", "plan": "{}", "created": 1.0, **columns})


def test_each_state_ends_when_the_next_begins():
    states = [State(t=1.0, state="Starting"), State(t=2.0, state="Training"), State(t=5.0, state="Uploading")]
    end = row(status="Completed", secondary_status="Completed", ended=6.0)
    texts = [(t["Status"], t["StartTime"], t.get("EndTime")) for t in transitions(states, end)]
    assert texts == [("Starting", 1.0, 2.0), ("Training", 2.0, 5.0), ("Uploading", 5.0, 6.0), ("Completed", 6.0, 6.0)]
    (only,) = transitions([], row())
    assert (only["Status"], only["StartTime"], "EndTime" in only) == ("Starting", 1.0, False)


def test_the_mapping_file():
    document = {
        "instance_types": {"ml.p4d.24xlarge": {"hosts": 1, "gpus": 8}, "ml.m5.*": {}},
        "images": {"*/pytorch-training:*": "mine:1"},
        "quotas": {"ada": {"jobs": 4}, "*": {"jobs": 2}},
    }
    mapping = parse_mapping(document, "m.yaml")
    assert mapping.host_type("ml.p4d.24xlarge") == HostType(hosts=1, gpus=8)
    assert mapping.host_type("ml.m5.large") == HostType()
    assert mapping.host_type("ml.c5.large") is None
    assert (mapping.quota("ada").jobs, mapping.quota("bob").jobs) == (4, 2)
    assert Mapping().host_type("ml.c5.large") == HostType()
    with pytest.raises(InputError, match=r"m\.yaml: .*gpu"):
        parse_mapping({"instance_types": {"ml.m5.large": {"gpu": 1}}}, "m.yaml")


@pytest.mark.parametrize(("account", "region"), [("12", "us-east-1"), ("1" * 12, "here"), ("1" * 12, "a-b-<x>")])
def test_names_that_no_arn_has(account, region):
    with pytest.raises(InputError):
        check_account(account, (region,))


def test_the_file_of_keys_is_private_and_is_read_again(tmp_path):
    keys = KeyFile(tmp_path / "keys.json")
    ada = keys.add("ada")
    reader = KeyFile(keys.path)
    assert reader.find(ada.key_id) == ada
    assert keys.path.stat().st_mode & 0o777 == 0o600
    assert ada.secret not in repr(ada)
    bob = keys.add("bob", sees_all=True)
    assert reader.find(bob.key_id).sees_all
    keys.remove("ada")
    assert reader.find(ada.key_id) is None
    for name in ("bob", "../x", ""):
        with pytest.raises(InputError):
            keys.add(name)
    keys.path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        KeyFile(keys.path).find(bob.key_id)
    keys.path.chmod(0o600)
    keys.path.write_text('{"keys": [{"name": "x", "secret": "hush"')
    with pytest.raises(InputError) as caught:
        KeyFile(keys.path).find("x")
    assert "hush" not in str(caught.value)


def test_a_form_has_the_members_that_its_shape_says():
    shape = model.find_operation("monitoring", "GetMetricStatistics").input_shape
    form = (
        "Action=GetMetricStatistics&Version=2010-08-01&MetricName=a%20b&Period=60&StartTime=2026-11-29T10%3A00%3A00Z"
        "&Dimensions.member.1.Name=TrainingJobName&Dimensions.member.1.Value=a&Dimensions.member.2.Name=x"
        "&Statistics.member.1=Average&Statistics.member.2=Sum&Other.member.1=1"
    )
    assert wire.read_members(wire.Protocol.QUERY, form.encode(), shape) == {
        "MetricName": "a b",
        "Period": 60,
        "StartTime": "2026-11-29T10:00:00Z",
        "Dimensions": [{"Name": "TrainingJobName", "Value": "a"}, {"Name": "x"}],
        "Statistics": ["Average", "Sum"],
        # Refused by the check of members, like every one that AWS does not know.
        "Other": "",
    }
    assert wire.read_members(wire.Protocol.QUERY, b"Period=soon", shape) == {"Period": "soon"}


@pytest.mark.parametrize("body", [b"\xff", b"\x81" * 100_000, b"\x01", b"\x9f" * 10])
def test_bytes_that_are_no_cbor_are_the_callers_mistake(body):
    with pytest.raises(ApiError) as caught:
        wire.read_members(wire.Protocol.CBOR, body, None)
    assert (caught.value.code, caught.value.status) == ("SerializationException", 400)


def test_roles_and_callers():
    call = Call(AccessKey(name="ada", key_id="a", secret="b"), "us-east-1")  # noqa: S106
    identity = Identity(Settings(backend="local_process", account="123456789012"))
    caller, role = identity.get_caller_identity(call, {}), identity.get_role(call, {"RoleName": "me"})
    for service, name, answer in (("sts", "GetCallerIdentity", caller), ("iam", "GetRole", role)):
        operation = model.find_operation(service, name)
        model.check_answer(operation, answer)
        document = wire.answer(wire.Protocol.QUERY, operation, answer, "r").decode()
        assert f"<{name}Result>" in document
        assert "<RequestId>r</RequestId>" in document
    assert (caller["Account"], role["Role"]["Arn"]) == ("123456789012", "arn:aws:iam::123456789012:role/me")
    with pytest.raises(ApiError, match="RoleName"):
        identity.get_role(call, {"RoleName": "<x>"})
    with pytest.raises(ApiError) as denied:
        model.find_operation("iam", "SimulatePrincipalPolicy", refusal="InvalidAction")
    assert (denied.value.code, denied.value.status) == ("AccessDenied", 403)
    with pytest.raises(ApiError) as unknown:
        model.find_operation("sts", "AssumeRole", refusal="InvalidAction")
    assert (unknown.value.code, unknown.value.status) == ("InvalidAction", 501)


def add_key(path, name):
    KeyFile(path).add(name)


def test_keys_that_are_added_together_are_all_there(tmp_path):
    names = [f"user-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_key, [tmp_path / "keys.json"] * len(names), names))
    assert sorted(key.name for key in KeyFile(tmp_path / "keys.json").all()) == sorted(names)


def test_calls_without_a_key_do_not_fill_the_audit(tmp_path):
    now = 0.0
    audit = Audit(tmp_path / "audit.log", clock=lambda: now)
    for _ in range(1000):
        audit.add(status=403)
    audit.add(key="ada", status=200)
    now = 1.0
    audit.add(status=403)
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert len(lines) == 102
    assert [line.get("unwritten") for line in lines[-2:]] == [900, None]


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        ("OptionError", "ValidationException", 400),
        ("ImageError", "ValidationException", 400),
        ("JobNameError", "ResourceInUse", 400),
        ("JobNotFoundError", "ResourceNotFound", 400),
        ("AwsAccessError", "ValidationException", 400),
        ("IndexBusyError", "ServiceUnavailable", 503),
        ("EngineError", "ServiceUnavailable", 503),
        ("HerringboneError", "InternalFailure", 500),
    ],
)
def test_an_error_of_the_callers_is_not_repeated_by_their_sdk(kind, code, status):
    answer = error_of(getattr(errors, kind)("no such image"))
    assert (answer.code, answer.message, answer.status) == (code, "no such image", status)
