"""Lightning's `Trainer` without `num_nodes` prints a notice in a job of several hosts."""

from __future__ import annotations

from types import ModuleType

import pytest

from herringbone_entry.ranks import lightning


@pytest.mark.parametrize(("num_nodes", "expected"), [(1, "give Trainer(num_nodes=2, devices=1)"), (2, "")])
def test_a_trainer_of_one_host_is_noticed(
    num_nodes: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Trainer:
        def __init__(self, num_nodes: int = 1) -> None:
            self.world_size = num_nodes

    module = ModuleType("trainer")
    module.Trainer = Trainer  # type: ignore[attr-defined]
    lightning.watch(module)
    for name, value in {"WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    Trainer(num_nodes=num_nodes)
    text = capsys.readouterr().err
    assert expected in text
    assert bool(text) == bool(expected)
