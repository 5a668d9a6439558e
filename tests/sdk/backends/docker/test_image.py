"""The image of a job that names none: of its version, or else the newest one of its framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from herringbone import PyTorch
from herringbone.backends.docker.image import choose_image
from herringbone_contract.errors import ImageError

LABELS = {"dev.herringbone.framework": "pytorch", "dev.herringbone.contract": "1"}


class Listing:
    """An engine that has images of some versions, each one newer than the one before."""

    def __init__(self, *versions: str) -> None:
        self._versions = versions

    def get(self, path: str, **_: Any) -> Any:
        if path != "/images/json":
            return {"Id": path, "Config": {"Labels": LABELS}}
        return [
            {
                "Created": number,
                "Labels": {**LABELS, "dev.herringbone.version": version},
                "RepoTags": [f"herringbone/pytorch:{version}-cpu-0a"],
            }
            for number, version in enumerate(self._versions)
        ]


@pytest.mark.parametrize(
    ("versions", "chosen", "said"),
    [
        (["2.1.0", "2.13.0"], "2.1.0", ""),
        (["2.4.0", "2.13.0"], "2.13.0", "framework_version 2.1: the engine has no such pytorch image"),
    ],
)
def test_the_version_is_taken_or_the_newest_one_with_a_notice(tmp_path, capsys, versions, chosen, said) -> None:
    Path(tmp_path / "train.py").write_text("")
    estimator = PyTorch("train.py", source_dir=tmp_path, instance_type="local_process", framework_version="2.1")
    plan = estimator.plan()
    capsys.readouterr()
    assert choose_image(Listing(*versions), plan).name == f"herringbone/pytorch:{chosen}-cpu-0a"
    err = capsys.readouterr().err
    assert said in err
    assert bool(said) == bool(err)
    with pytest.raises(ImageError, match=r"no pytorch image for cpu, version 2\.1; build one"):
        choose_image(Listing(), plan)
