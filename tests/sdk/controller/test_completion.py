"""The end of an attempt: what a script wrote in its own tree is read without following a link, and without waiting."""

import json
import os
from types import SimpleNamespace

import pytest

from herringbone.controller.attempts import newest_file
from herringbone.controller.completion import _host_end
from herringbone.controller.hosts import Host


def ended(tmp_path):
    """Return a host that failed, and the controller's config for it."""
    (tmp_path / "ml" / "output").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "algo-1.log").touch()
    host = Host({"name": "algo-1", "base": str(tmp_path / "ml")}, log=SimpleNamespace(lost=0, failure=""))
    host.exit_code = 1
    return host, {"logs": str(tmp_path / "logs")}


@pytest.mark.parametrize("kind", ["link", "FIFO", "long", "folder"])
@pytest.mark.parametrize("name", ["failure", "failure.json"])
def test_only_a_file_says_why_a_host_failed(tmp_path, name, kind):
    """A link showed a file of this machine in the job's failure, and a FIFO stopped the controller for ever."""
    host, config = ended(tmp_path)
    path = tmp_path / "ml" / "output" / name
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"exception": "Secret", "message": "of this machine", "exit_code": 1}))
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            # A file with a hole: 1 TB that take no space.
            file.truncate(1 << 40)
    end = _host_end(config, host, ordered=False)
    assert end.record is None
    assert "of this machine" not in end.cause
    assert len(end.cause) <= 1_024


def test_the_newest_checkpoint_is_looked_for_in_the_folder_alone(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "private").touch()
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "epochs").mkdir(parents=True)
    (checkpoints / "epochs" / "5.pt").touch()
    (checkpoints / "epochs" / "6.pt.tmp").touch()
    (checkpoints / ".step-7.00.unfinished").mkdir()
    (checkpoints / ".step-7.00.unfinished" / "rank-00000.safetensors").touch()
    (checkpoints / "link").symlink_to(tmp_path / "outside")
    (checkpoints / "file").symlink_to(tmp_path / "outside" / "private")
    os.utime(tmp_path / "outside" / "private", (4e9, 4e9))
    for other in ("newest", "events.out.tfevents.1"):
        (checkpoints / other).touch()
    newest = newest_file(checkpoints)
    assert newest == ("epochs/5.pt", (checkpoints / "epochs" / "5.pt").stat().st_mtime_ns)
    assert newest_file(checkpoints / "link", tmp_path / "nowhere") is None


def test_tables_and_texts_beside_a_checkpoint_are_not_the_newest_one(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    written = iter(range(1, 100))

    def write(name: str) -> None:
        (checkpoints / name).touch()
        os.utime(checkpoints / name, (0, next(written)))

    write("5.pt")
    for suffix in ("csv", "tsv", "jsonl", "log", "txt", "md", "html", "png", "yaml", "yml"):
        write(f"results.{suffix}")
        assert newest_file(checkpoints) == ("5.pt", 1_000_000_000), suffix
    # Scripts keep their states as JSON.
    write("state.json")
    assert newest_file(checkpoints) == ("state.json", 12_000_000_000)
