"""Links that lead out of a channel, which a container cannot follow."""

from pathlib import Path

import msgspec
import pytest
from tests.plans import plan_of

from herringbone.backends.review.links import leaving_links, link_warnings
from herringbone.plan.request import make_request


@pytest.fixture
def data(tmp_path) -> Path:
    """A channel as caches of hubs have it, with links that stay inside, and one that leads nowhere anyway."""
    folder = tmp_path / "snapshots/main"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/abc").touch()
    (folder / "own").touch()
    for name, target in {
        "weights": "../../blobs/abc",
        "inner/weights": "../../../blobs/abc",
        "inner/own": "../own",
        "absolute": str(tmp_path / "blobs"),
        "inside": str(folder / "own"),
        "nowhere": "../../gone",
    }.items():
        (folder / name).symlink_to(target)
    return folder


def test_links_that_a_container_cannot_follow_are_named(data):
    # A container does not have the machine's path of the channel either.
    assert sorted(leaving_links(str(data))) == ["absolute", "inner/weights", "inside", "weights"]
    assert list(leaving_links(str(data), most=1)) == ["absolute"]


@pytest.mark.parametrize(("backend", "count"), [("local", 1), ("local_process", 0)])
def test_a_plan_for_containers_warns(data, tmp_path, backend, count):
    """The script read FileNotFoundError, in containers only, and no line said why."""
    (tmp_path / "train.py").touch()
    request = make_request("PyTorch", {"entry_point": "train.py", "instance_type": "local"})
    plan = plan_of(request, tmp_path, inputs={"training": str(data)})
    warnings = link_warnings(msgspec.structs.replace(plan, backend=backend))
    assert len(warnings) == count
    if count:
        assert warnings[0].startswith("channel 'training': the links absolute, inside, weights and 1 more lead out of")
