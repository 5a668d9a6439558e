"""The loop of a job's controller: lost races, servers that are away, accounts that may do nothing."""

from __future__ import annotations

from typing import Any

import pytest

from herringbone.backends.kubernetes.attempts.keeper import keep
from herringbone_contract.errors import KubernetesError
from tests.kubernetes.fake_cluster import CrashError
from tests.kubernetes.test_keeper import attempts, cluster_of, keeper_of, lose, steps


def test_of_two_controllers_one_reads_again(tmp_path):
    cluster = cluster_of(tmp_path)
    steps(cluster, 2)
    lose(cluster)
    read = cluster._read

    def overtaken(path: str, query: dict[str, str]) -> Any:
        answer = read(path, query)
        if path.endswith("/configmaps/hb-digits"):
            # Another controller decides between the read and the write of this one.
            cluster._read = read
            keeper_of(cluster).step()
        return answer

    cluster._read = overtaken
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) > 4:
            raise CrashError

    with pytest.raises(CrashError):
        keep(cluster, "team-a", "digits", sleep=sleep)
    assert (len(attempts(cluster)), cluster.data["attempt"]) == (1, "2")


@pytest.mark.parametrize("status", [None, 503])
def test_a_server_that_is_away_is_asked_less_and_less(tmp_path, status):
    cluster = cluster_of(tmp_path)
    naps: list[float] = []

    def away(*_: Any) -> None:
        raise KubernetesError("the API server does not answer", status=status)

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) > 9:
            raise CrashError

    cluster._read = away
    with pytest.raises(CrashError):
        keep(cluster, "team-a", "digits", sleep=sleep)
    assert naps[0] < 7 < 11 < naps[-1] < 19


def test_an_account_that_may_do_nothing_ends_the_controller_with_the_servers_words(tmp_path):
    cluster = cluster_of(tmp_path)

    def forbidden(*_: Any) -> None:
        raise KubernetesError("configmaps is forbidden", status=403)

    cluster._read = forbidden
    with pytest.raises(KubernetesError, match="configmaps is forbidden"):
        keep(cluster, "team-a", "digits", sleep=print)
