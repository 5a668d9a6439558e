"""CloudWatch's log of all hosts as one stream of lines: whole, once and in order, whatever the service does."""

import time

import pytest

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.logs import CloudWatchLogs
from herringbone.jobs.polling import Pace
from herringbone_contract.errors import AwsAccessError, AwsCredentialsError
from tests.sagemaker.service import PAGE_EVENTS

HURRY = Pace(0.01, 0.05, 1.5)
CALM = Pace(60, 60, 1)


@pytest.fixture
def logs(service, boto):
    """Returns the log of a job."""

    def make(num_hosts=1, pace=HURRY):
        return CloudWatchLogs(AwsSession.of(boto), "a", num_hosts=num_hosts, pace=pace)

    return make


def lines(source):
    """Read until there is nothing for now; the pace is waited for."""
    time.sleep(HURRY.longest)
    return [line.text for batch in iter(source.read, []) for line in batch]


def rest(source, ended=None):
    return [line.text for batch in source.rest(ended) for line in batch]


def test_ten_thousand_lines_of_sixty_hosts_arrive_once_and_in_order(service, logs):
    for number in range(10_000):
        host = number * 7 % 60 + 1
        service.write(f"a/algo-{host}-1", [f"[algo-{host}:0] {number}"])
    service.write("another/algo-1-1", ["not ours"])
    source = logs(60, CALM)
    assert lines(source) == [str(number) for number in range(10_000)]
    assert service.calls["DescribeLogStreams"] == 2
    # A page for every hundred lines of a host, and one that shows its end.
    assert service.calls["GetLogEvents"] == 60 * (10_000 // 60 // PAGE_EVENTS + 2)
    assert lines(source) == []


def test_a_host_that_never_falls_silent_is_not_asked_without_a_pause(service, logs):
    service.write("a/algo-1-1", [str(number) for number in range(250)], first_ms=int(time.time() * 1_000))
    source = logs(pace=Pace(0.5, 0.5, 1))
    assert len(source.read()) == PAGE_EVENTS
    assert source.read() == []
    assert service.calls["GetLogEvents"] == 1
    assert rest(source) == [str(number) for number in range(100, 250)]


def test_streams_and_lines_that_come_late(service, logs):
    service.has_group = False
    source = logs(2)
    assert lines(source) == []
    service.has_group = True
    service.write("a/algo-1-1", ["[algo-1:0] 1"])
    assert lines(source) == ["1"]
    service.write("a/algo-1-1", ["[algo-1:0] 2"])
    service.write("a/algo-2-1", ["[algo-2:1] 3", "cut off\n"])
    assert lines(source) == ["2", "3", "cut off"]
    listed = service.calls["DescribeLogStreams"]
    service.write("a/algo-2-1", [f"[algo-2:1] {number}" for number in range(250)])
    assert lines(source) == [str(number) for number in range(250)]
    assert service.calls["DescribeLogStreams"] == listed  # every host has its stream


def test_the_last_lines_of_a_job_that_is_over_are_waited_for(service, logs):
    service.write("a/algo-1-1", ["1"])
    source, got = logs(), []
    for batch in source.rest(time.time()):
        got += [line.text for line in batch]
        if len(got) < 3:
            # After the end, as CloudWatch does; also from a host that started again.
            service.write("a/algo-1-1" if len(got) == 1 else "a/algo-1-2", [str(len(got) + 1)])
    assert got == ["1", "2", "3"]
    asked = service.calls["GetLogEvents"]
    assert rest(logs(pace=CALM), ended=time.time() - 3_600) == ["1", "2", "3"]
    assert service.calls["GetLogEvents"] - asked == 4  # nobody waits for a log of an hour ago


def test_throttling_is_waited_for(service, logs):
    service.write("a/algo-1-1", ["1"])
    service.trouble("DescribeLogStreams", 1, "ThrottlingException", "Rate exceeded")
    service.trouble("GetLogEvents", 1, "ThrottlingException", "Rate exceeded")
    assert lines(logs()) == ["1"]
    assert service.calls["GetLogEvents"] == 3


def test_credentials_that_expire_in_mid_log_lose_no_line(service, logs):
    service.write("a/algo-1-1", [str(number) for number in range(250)])
    source = logs()
    assert len(source.read()) == 100
    service.trouble("GetLogEvents", 2, "ExpiredTokenException")
    with pytest.raises(AwsCredentialsError, match="the log of algo-1 of job a: the AWS credentials have expired"):
        source.read()
    # Somebody has logged in; a first failure of one question is not even told.
    service.trouble("GetLogEvents", 1, "ExpiredTokenException")
    assert lines(source) == [str(number) for number in range(100, 250)]


def test_a_token_that_the_service_forgot_neither_loses_nor_repeats_a_line(service, logs):
    service.write("a/algo-1-1", [str(number) for number in range(150)], first_ms=1_000)
    source = logs()
    assert lines(source) == [str(number) for number in range(150)]
    service.forget_tokens = True
    service.write("a/algo-1-1", ["150"], first_ms=1_149)  # at the time of the last one
    service.write("a/algo-1-1", ["151"], first_ms=1_150)
    assert lines(source) == ["150", "151"]


def test_a_log_that_may_not_be_read_names_the_permission(service, logs):
    service.trouble("DescribeLogStreams", 1, "AccessDeniedException", "User: me may not")
    with pytest.raises(AwsAccessError, match=r"to list the log streams of job a: access denied: User: me may not; "):
        logs().read()


def test_a_stream_that_was_deleted_ends_nothing(service, logs):
    service.write("a/algo-1-1", ["1"])
    service.write("a/algo-2-1", ["2"])
    source = logs(2)
    service.trouble("GetLogEvents", 1, "ResourceNotFoundException")
    assert sorted(lines(source) + lines(source)) == ["1", "2"]
