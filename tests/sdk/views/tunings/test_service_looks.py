"""Searches of SageMaker in lists: asked for rarely, in threads, and shown as last seen while the service is silent."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest
from tests.page.make_tunings import definition_of

from herringbone.aws.session import AwsLocation
from herringbone.tuner.look import TuningLook
from herringbone.tuner.service.tuning import ServiceRecord, claim_folder
from herringbone.tuner.store import TrialRecord
from herringbone.views.tunings.looks import ServiceLooks, Tunings
from herringbone_contract.errors import AwsUnavailableError


class Service:
    """One tuning job as SageMaker answers for it; `asked` counts the questions."""

    def __init__(self):
        self.asked, self.status, self.error = 0, "InProgress", None
        self.answers = threading.Event()
        self.answers.set()

    def look(self):
        self.asked += 1
        self.answers.wait(20)
        if self.error is not None:
            raise self.error
        trial = TrialRecord(number=0, job="digits-001-abc", values={"lr": 0.01}, proposed=130.0, started=140.0)
        ended = None if self.status == "InProgress" else 300.0
        definition = definition_of("other")
        return TuningLook(
            definition=definition, trials=[trial], status=self.status, backend="sagemaker", created=120.0, ended=ended
        )


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def now():
    return [1000.0]


@pytest.fixture
def folder(home):
    home.make()
    location = msgspec.convert({"account": "1", "region": "eu-west-1", "profile": None}, AwsLocation)
    record = ServiceRecord(definition=definition_of("digits"), location=location, created=100.0)
    claim_folder(home.tuning("digits"), record)
    return home.tunings


@pytest.fixture
def looks(folder, service, now):
    return ServiceLooks(folder, find=lambda _: service, clock=lambda: now[0], patience=20.0)


def until_answered(looks):
    looks._asked["digits"].thread.join(20)
    return looks.look("digits")


def test_a_service_is_asked_once_in_half_a_minute_until_the_end(looks, service, now):
    look = looks.look("digits")
    assert (look.status, look.name, look.created, look.backend, look.trials[0].job) == (
        "InProgress",
        "digits",
        120.0,
        "sagemaker",
        "digits-001-abc",
    )
    now[0] += 29
    looks.look("digits")
    assert service.asked == 1
    now[0] += 1
    service.status = "Completed"
    looks.look("digits")
    look = until_answered(looks)
    assert (look.status, look.ended, service.asked) == ("Completed", 300.0, 2)
    now[0] += 1000
    looks.look("digits")
    assert service.asked == 2


def test_a_silent_service_keeps_nobody_waiting(folder, service, now):
    service.answers.clear()
    looks = ServiceLooks(folder, find=lambda _: service, clock=lambda: now[0], patience=0.01)
    assert looks.look("digits").reason == "SageMaker has not answered yet"
    now[0] += 60
    looks.look("digits")
    # The first question still waits, so there is no second one.
    assert service.asked == 1
    service.answers.set()
    assert until_answered(looks).reason is None


def test_an_error_leaves_the_last_answer_with_its_reason(looks, service, now):
    looks.look("digits")
    service.error = AwsUnavailableError("no answer from sagemaker\nmore")
    now[0] += 31
    looks.look("digits")
    look = until_answered(looks)
    assert (look.reason, len(look.trials)) == ("no answer from sagemaker", 1)


def test_the_list_has_searches_of_both_kinds(home, folder, monkeypatch, service):
    monkeypatch.setattr(
        "herringbone.views.tunings.looks.ServiceLooks", lambda path: ServiceLooks(path, find=lambda _: service)
    )
    [look] = Tunings(home).all()
    assert (look.name, look.backend, look.reason) == ("digits", "sagemaker", None)


def test_searches_that_nobody_answers_for_are_waited_for_together(home, folder, service):
    location = msgspec.convert({"account": "1", "region": "eu-west-1", "profile": None}, AwsLocation)
    for number in range(9):
        record = ServiceRecord(definition=definition_of(f"more-{number}"), location=location, created=100.0)
        claim_folder(home.tuning(f"more-{number}"), record)
    service.answers.clear()
    looks, begin = ServiceLooks(folder, find=lambda _: service, patience=0.2), time.monotonic()
    assert [looks.look(f"more-{number}").status for number in range(9)] == ["InProgress"] * 9
    assert time.monotonic() - begin < 1.0
    service.answers.set()
