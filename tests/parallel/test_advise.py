from __future__ import annotations

import pytest

from herringbone_parallel.advise import main

HOSTS = ["--hosts=4", "--helpers=9", "--mbit=200", "--gradient-mb=25", "--forward-ms=100", "--backward-ms=200"]


def test_main_prints_the_table_and_the_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(HOSTS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["scheme", "sharded", "ring", "tree", "helpers"]
    assert lines[5].startswith("25.0 MB of gradients are summed by 9 helpers: ")
    assert '"wire": "bf16" of dataparallel' in lines[-1]
    assert lines[-1].endswith(" 4 of 9 helpers take all that 4 hosts can send; 5 more gain nothing.")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--hosts", "0", "at least 1 worker"), ("--mbit", "0", "bytes_per_s"), ("--gradient-mb", "0", "0 bytes")],
)
def test_invalid_options_are_refused_by_name(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*HOSTS, option, value])
    assert message in capsys.readouterr().err
