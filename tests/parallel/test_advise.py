from __future__ import annotations

import pytest

from herringbone_parallel.advise import main

HOSTS = ["--hosts=4", "--helpers=9", "--mbit=200", "--gradient-mb=25", "--forward-ms=100", "--backward-ms=200"]


def test_advice_before_anything_is_paid_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(HOSTS) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[:5]] == ["scheme", "sharded", "ring", "tree", "helpers"]
    assert "- 9 helpers for 4 workers: 4 take all that the workers can send, 5 more gain nothing." in said
    assert '"wire": "bf16" of dataparallel' in said[-1]


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [("--hosts", "0", "at least 1 worker"), ("--mbit", "0", "bytes_per_s"), ("--gradient-mb", "0", "0 bytes")],
)
def test_hosts_that_cannot_be_are_refused_by_name(
    option: str, value: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*HOSTS, option, value])
    assert named in capsys.readouterr().err
