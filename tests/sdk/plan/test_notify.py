"""The option `notify`: what is accepted, what is refused before a job starts, and that no secret is in it."""

import json
from pathlib import Path

import msgspec
import pytest

from herringbone import Estimator
from herringbone.plan.notify import Notify, absolute_notify
from herringbone.plan.options.typed import parse_options
from herringbone.plan.plan import parse_plan
from herringbone.plan.request import request_of
from herringbone_contract.errors import OptionError

SECRET = "hunter2"  # noqa: S105 - of no service
MAIL = {"mail": "me@example.com", "server": "smtp.example.com"}


def refused(value):
    with pytest.raises(OptionError) as caught:
        parse_options({"notify": value})
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://ci.example.com/hook", "webhook https://ci.example.com/hook"),
        ("env:CHAT_HOOK", "webhook env:CHAT_HOOK"),
        ({"webhook": "http://[::1]:8080", "secret": "file:key"}, "webhook http://[::1]:8080"),
        ([{"command": ["notify-send", "done"], "on": ["failed"]}], "command notify-send"),
        (MAIL, "mail me@example.com"),
        ({**MAIL, "mail": ["a@x", "b@y"], "from": "hb@z", "security": "tls"}, "mail a@x, b@y"),
        ({**MAIL, "server": "localhost:2525", "security": "none"}, "mail me@example.com"),
        (Notify(webhook="env:HOOK"), "webhook env:HOOK"),
    ],
)
def test_a_destination_is_accepted(value, shown):
    (one,) = parse_options({"notify": value}).notify
    assert str(one) == shown


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"webhook": "https://h/x", "secret": SECRET},
            "notify[0].secret: a secret itself would be stored with the job",
        ),
        ({"webhook": "https://h/x", "secret": "env:"}, "env:NAME or file:PATH"),
        ({"webhook": "https://h/x", "secret": f"env:{SECRET}!"}, "env:NAME or file:PATH"),
        ({**MAIL, "login": "me", "password": SECRET}, "notify[0].password: a secret itself"),
        ({**MAIL, "login": "me"}, "login and password go together"),
        (f"https://hooks.slack.com/services/T0/B0/{SECRET}", "so it is a secret, which would be stored with the job"),
        (f"https://prod-1.westeurope.logic.azure.com/workflows/{SECRET}", "so it is a secret"),
        (f"https://ci.example.com/hook?token={SECRET}", "so it is a secret"),
        (f"https://me:{SECRET}@ci.example.com/hook", "names a user"),
        ("http://ci.example.com/hook", "http:// sends notices in the open to ci.example.com"),
        ("http://localhost.example.com/", "in the open"),
        ("ftp://ci.example.com/hook", "it is no address of a webhook"),
        ("https://[::1/hook", "it is no address of a webhook"),
        ("https:///hook", "it is no address of a webhook"),
        ("https://h/a b", "it is no address of a webhook"),
        ("https://h/a\nb", "has a control character"),
        ({}, "notify[0]: one of webhook, command, mail is a destination, and none is given"),
        ({"webhook": "https://h", **MAIL}, "webhook and mail is given"),
        ({"webhook": "https://h", "login": "me"}, "notify[0].login: a webhook has none; leave it out"),
        ({"command": ["a"], "from": "a@b"}, "notify[0].from: a command has none"),
        ({"command": []}, "it names no program"),
        ({"command": "notify-send done"}, "expected list"),
        ({"command": ["curl", "--api-key", SECRET]}, "a secret, which would be an argument of a process"),
        ({"mail": "me@example.com"}, "mail needs a server"),
        ({**MAIL, "server": "smtp.example.com:99999"}, "mail needs a server"),
        ({**MAIL, "mail": "Me <me@example.com>"}, "is no address of mail"),
        ({**MAIL, "mail": []}, "it names nobody"),
        ({**MAIL, "from": "nobody"}, "'nobody' is no address of mail"),
        ({**MAIL, "security": "none"}, "'none' sends mail in the open to smtp.example.com"),
        ({"webhook": "env:HOOK", "on": []}, "names no kind of notice"),
        ({"webhook": "env:HOOK", "on": ["faild"]}, "faild"),
        ({"webhok": "env:HOOK"}, "no such key 'webhok', did you mean 'webhook'?"),
        (["env:HOOK", "env:HOOK"], "notify[1]: webhook env:HOOK is given twice"),
        ([f"env:H{number}" for number in range(9)], "9 destinations, the limit is 8"),
        (3, "notify"),
    ],
)
def test_a_mistake_is_refused_by_name_and_without_its_secret(value, message):
    assert message in refused(value)


def test_a_destination_whose_secret_or_program_is_not_there_is_refused_at_plan(script, monkeypatch, tmp_path):
    script("print('x')")

    def plan(value):
        return Estimator("train.py", instance_type="local_process", notify=value).plan()

    monkeypatch.delenv("NO_HOOK", raising=False)
    monkeypatch.setenv("BAD_HOOK", f"http://ci.example.com/{SECRET}")
    for value, message in (
        ("env:NO_HOOK", r"notify\[0\].webhook: the variable NO_HOOK is not set in this process"),
        ("file:none", "none cannot be read: No such file or directory"),
        ("env:BAD_HOOK", "in the open to ci.example.com"),
        ({"command": ["./no-such-program"]}, "there is no program './no-such-program'"),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            plan(value)
        assert SECRET not in str(caught.value)
    (tmp_path / "work" / "hook").write_text("https://ci.example.com/hook\n")
    program = tmp_path / "work" / "tell"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert "notify:            command ./tell" in str(plan(["file:hook", {"command": ["./tell"]}]))


def test_a_stored_plan_is_read_again_and_a_rerun_has_absolute_files(script, monkeypatch):
    script("print('x')")
    monkeypatch.setenv("HOOK", f"https://ci.example.com/{SECRET}")
    given = [{"webhook": "env:HOOK", "secret": "file:key"}, {**MAIL, "mail": ["a@x"], "on": ["ended"]}]
    with open("key", "w") as file:
        file.write(SECRET)
    plan = Estimator("train.py", instance_type="local_process", notify=given).plan()
    stored = plan.to_dict()
    assert SECRET not in json.dumps(stored)
    assert parse_plan(stored).options.notify == plan.options.notify
    again = request_of(parse_plan(stored)).options.notify
    assert again[0].secret == f"file:{plan.folder}/key"
    assert absolute_notify(again, Path("/elsewhere")) == again


def test_the_files_of_a_destination_have_the_same_names_after_a_trip_through_the_index():
    (one,) = parse_options({"notify": {**MAIL, "mail": ["a@x"], "on": ["ended"]}}).notify
    assert msgspec.convert(msgspec.to_builtins(one), Notify).file_name == one.file_name
