"""Requirements baked into an image: installed once, without other changes to the image."""

import subprocess

import pytest

from herringbone.images.bake import bake
from herringbone.images.wheel import pack
from herringbone_contract.errors import ImageError, InputError

pytestmark = pytest.mark.docker


@pytest.fixture
def requirements(tmp_path):
    """A requirements file that includes another one, and a folder with the wheel that they need."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    information = "hbtiny-1.0.dist-info"
    files = {
        "hbtiny.py": b"ANSWER = 42\n",
        f"{information}/METADATA": b"Metadata-Version: 2.1\nName: hbtiny\nVersion: 1.0\n",
        f"{information}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    (wheels / "hbtiny-1.0-py3-none-any.whl").write_bytes(pack(files, f"{information}/RECORD"))
    (tmp_path / "more.txt").write_text("hbtiny==1.0\n")
    (tmp_path / "requirements.txt").write_text("--no-index\n-r more.txt\n")
    return tmp_path / "requirements.txt"


@pytest.fixture
def baked(engine, own_engine, image, requirements):
    """Bakes requirements into the image; the new images are removed after the test."""
    names = []

    def make():
        baked_image = bake(
            own_engine, image, requirements, lambda line: None, wheelhouse=requirements.parent / "wheels"
        )
        names.append(baked_image.name)
        return baked_image

    yield make
    for name in set(names):
        engine.remove_image(name, force=True)


def test_the_image_gets_the_package_and_no_other_change(engine, image, baked):
    derived = baked()
    assert derived.built
    assert derived.name.startswith(f"{image}-with-")
    command = ["docker", "run", "--rm", "--user", "4711", derived.name, "sh", "-c"]
    run = subprocess.run(
        [*command, "python -c 'import hbtiny, torch; print(hbtiny.ANSWER)'; ls -A /tmp"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == ["42"]
    base_config, derived_config = (engine.inspect_image(name)["Config"] for name in (image, derived.name))
    assert not derived_config["Entrypoint"]
    for key in ("Cmd", "Env", "WorkingDir", "StopSignal"):
        assert derived_config[key] == base_config[key], key
    assert derived_config["Labels"].items() >= base_config["Labels"].items()


def test_the_same_requirements_are_baked_once(baked, requirements):
    derived = baked()
    assert not baked().built
    (requirements.parent / "more.txt").write_text("# the same, but for a word\nhbtiny==1.0\n")
    assert baked().name != derived.name


def test_a_baked_image_is_never_chosen_by_itself(own_engine, image, baked):
    from herringbone.images.find import find

    derived = baked()
    assert find(own_engine, framework="pytorch", device="cpu") != derived.name


def test_a_package_that_pip_cannot_find_is_named(engine, own_engine, image, tmp_path):
    (tmp_path / "requirements.txt").write_text("--no-index\nhb-no-such-package\n")
    containers = engine.containers(all=True, quiet=True, filters={"label": "dev.herringbone.requirements"})
    with pytest.raises(ImageError, match="No matching distribution found for hb-no-such-package"):
        bake(own_engine, image, tmp_path / "requirements.txt", lambda line: None)
    assert engine.containers(all=True, quiet=True, filters={"label": "dev.herringbone.requirements"}) == containers


def test_a_missing_image_is_named(engine, own_engine, tmp_path):
    (tmp_path / "requirements.txt").write_text("")
    with pytest.raises(ImageError, match="the image no-such-image:1 is not on this engine: docker pull"):
        bake(own_engine, "no-such-image:1", tmp_path / "requirements.txt", lambda line: None)


def test_missing_files_and_files_outside_the_folder_are_refused(own_engine, image, tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "requirements.txt"
    with pytest.raises(InputError, match=r"requirements\.txt: there is no such file"):
        bake(own_engine, image, path, lambda line: None)
    path.write_text("-r ../outside.txt\n")
    (tmp_path / "outside.txt").write_text("")
    with pytest.raises(InputError, match="must include files of their own folder"):
        bake(own_engine, image, path, lambda line: None)
