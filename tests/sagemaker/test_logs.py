"""Read the logs of all hosts as one stream: every line once and in order, whatever the service does."""

import time

import pytest

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.logs import CloudWatchLogs
from herringbone.system.polling import Pace
from herringbone_contract.errors import AwsAccessError, AwsCredentialsError
from tests.sagemaker.service import PAGE_EVENTS

FAST = Pace(0.01, 0.05, 1.5)
SLOW = Pace(60, 60, 1)


@pytest.fixture
def logs(service, boto):
    """Return a function that opens the log of job `a`."""

    def make(num_hosts=1, pace=FAST):
        return CloudWatchLogs(AwsSession.of(boto), "a", num_hosts=num_hosts, pace=pace)

    return make


def lines(source):
    """Return the lines that are ready, after a pause that makes every stream due."""
    time.sleep(FAST.longest)
    return [line.text for batch in iter(source.read, []) for line in batch]


def rest(source, ended=None):
    return [line.text for batch in source.rest(ended) for line in batch]


def test_ten_thousand_lines_of_sixty_hosts_arrive_once_and_in_order(service, logs):
    for number in range(10_000):
        host = number * 7 % 60 + 1
        service.write(f"a/algo-{host}-1", [f"[algo-{host}:0] {number}"])
    service.write("another/algo-1-1", ["not ours"])
    source = logs(60, SLOW)
    assert lines(source) == [str(number) for number in range(10_000)]
    assert service.calls["DescribeLogStreams"] == 2
    # A page for every hundred lines of a host, and one that shows its end.
    assert service.calls["GetLogEvents"] == 60 * (10_000 // 60 // PAGE_EVENTS + 2)
    assert lines(source) == []


def test_a_host_that_never_falls_silent_is_polled_with_pauses(service, logs):
    service.write("a/algo-1-1", [str(number) for number in range(250)], first_ms=int(time.time() * 1_000))
    source = logs(pace=Pace(0.5, 0.5, 1))
    assert len(source.read()) == PAGE_EVENTS
    assert source.read() == []
    assert service.calls["GetLogEvents"] == 1
    assert rest(source) == [str(number) for number in range(100, 250)]


def test_late_streams_and_late_lines(service, logs):
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
    assert service.calls["DescribeLogStreams"] == listed  # every host has its stream, so nothing is listed again


def test_the_last_lines_of_an_ended_job_are_waited_for(service, logs):
    service.write("a/algo-1-1", ["1"])
    source, received = logs(), []
    for batch in source.rest(time.time()):
        received += [line.text for line in batch]
        if len(received) < 3:
            # CloudWatch delivers lines after the end, also from a host that restarted.
            service.write("a/algo-1-1" if len(received) == 1 else "a/algo-1-2", [str(len(received) + 1)])
    assert received == ["1", "2", "3"]
    requests = service.calls["GetLogEvents"]
    assert rest(logs(pace=SLOW), ended=time.time() - 3_600) == ["1", "2", "3"]
    assert service.calls["GetLogEvents"] - requests == 4  # a log that is an hour old is complete


def test_throttled_requests_are_retried(service, logs):
    service.write("a/algo-1-1", ["1"])
    service.fail("DescribeLogStreams", 1, "ThrottlingException", "Rate exceeded")
    service.fail("GetLogEvents", 1, "ThrottlingException", "Rate exceeded")
    assert lines(logs()) == ["1"]
    assert service.calls["GetLogEvents"] == 3


def test_expired_credentials_lose_no_line(service, logs):
    service.write("a/algo-1-1", [str(number) for number in range(250)])
    source = logs()
    assert len(source.read()) == 100
    service.fail("GetLogEvents", 2, "ExpiredTokenException")
    with pytest.raises(AwsCredentialsError, match="the log of algo-1 of job a: the AWS credentials have expired"):
        source.read()
    # A new login has happened. A single failure is retried with new credentials, and not even reported.
    service.fail("GetLogEvents", 1, "ExpiredTokenException")
    assert lines(source) == [str(number) for number in range(100, 250)]


def test_a_forgotten_token_neither_loses_nor_repeats_a_line(service, logs):
    service.write("a/algo-1-1", [str(number) for number in range(150)], first_ms=1_000)
    source = logs()
    assert lines(source) == [str(number) for number in range(150)]
    service.forget_tokens = True
    service.write("a/algo-1-1", ["150"], first_ms=1_149)  # the timestamp of the last line
    service.write("a/algo-1-1", ["151"], first_ms=1_150)
    assert lines(source) == ["150", "151"]


def test_a_denied_log_names_the_permission(service, logs):
    service.fail("DescribeLogStreams", 1, "AccessDeniedException", "User: me may not")
    with pytest.raises(AwsAccessError, match=r"to list the log streams of job a: access denied: User: me may not; "):
        logs().read()


def test_a_deleted_stream_does_not_end_the_log(service, logs):
    service.write("a/algo-1-1", ["1"])
    service.write("a/algo-2-1", ["2"])
    source = logs(2)
    service.fail("GetLogEvents", 1, "ResourceNotFoundException")
    assert sorted(lines(source) + lines(source)) == ["1", "2"]
