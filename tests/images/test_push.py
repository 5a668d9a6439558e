"""A push to a real registry on loopback, Debian's docker-registry."""

import socket
import subprocess
import time
import urllib.request

import pytest

from herringbone.images.push import push
from herringbone_contract.errors import ImageError

pytestmark = pytest.mark.docker

CONFIGURATION = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture
def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture
def registry(tmp_path, port, registry_program):
    """The address of a registry that keeps its images in a folder of the test."""
    path = tmp_path / "registry.yml"
    path.write_text(CONFIGURATION.format(folder=tmp_path / "images", port=port))
    with subprocess.Popen([registry_program, "serve", path], stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/").close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
        server.terminate()


def test_a_pushed_image_can_be_pulled_by_its_digest(engine, own_engine, registry, import_image):
    image = import_image({"hello": b"world"})
    lines = []
    pushed = push(own_engine, image, registry, lines.append)
    assert pushed.startswith(f"{registry}/herringbone-test@sha256:")
    assert any(line.startswith("Pushed ") for line in lines)
    with urllib.request.urlopen(f"http://{registry}/v2/herringbone-test/tags/list") as answer:
        assert image.partition(":")[2].encode() in answer.read()
    engine.remove_image(f"{registry}/{image}")
    assert list(engine.pull(pushed.partition("@")[0], tag=pushed.partition("@")[2], stream=True))
    engine.remove_image(pushed)


def test_an_address_without_a_registry(engine, own_engine, port, import_image):
    image = import_image({"hello": b""})
    with pytest.raises(ImageError, match=f"cannot be pushed: .*; does a registry answer at 127.0.0.1:{port}"):
        push(own_engine, image, f"127.0.0.1:{port}", lambda line: None)
    engine.remove_image(f"127.0.0.1:{port}/{image}")


def test_a_missing_image_is_named(own_engine):
    with pytest.raises(ImageError, match="no-such-image:1 is not on this engine; `herringbone images ls`"):
        push(own_engine, "no-such-image:1", "127.0.0.1:1", lambda line: None)
