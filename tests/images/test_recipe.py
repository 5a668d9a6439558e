"""Recipes: the content decides the name, and missing files are reported without an engine."""

import pytest

from herringbone.images.recipe import make_recipe
from herringbone_contract.errors import InputError, OptionError

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"


@pytest.fixture
def wheelhouse(tmp_path):
    """Makes a folder with wheels of some content."""

    def make(*names, content=b"wheel"):
        folder = tmp_path / "wheels"
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_bytes(content)
        return folder

    return make


TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_the_name_holds_framework_version_and_device():
    name = make_recipe("pytorch").tag("sha256:base")
    assert name.startswith("herringbone/pytorch:2.13.0-cpu-")
    assert make_recipe("tensorflow", device="cuda").tag("sha256:base").startswith("herringbone/tensorflow:2.21.0-cuda-")


@pytest.mark.parametrize(
    ("framework", "device", "version"),
    [("huggingface", "cpu", "5.23.0"), ("sklearn", "cpu", "1.7.2"), ("xgboost", "cpu", "3.0.5")],
)
def test_a_framework_without_a_dockerfile_of_its_own_names_itself_to_the_shared_one(framework, device, version):
    recipe = make_recipe(framework, device=device)
    assert recipe.tag("sha256:base").startswith(f"herringbone/{framework}:{version}-{device}-")
    assert recipe.arguments["FRAMEWORK"] == framework
    dockerfile = recipe.context.files["Dockerfile"]
    assert b'dev.herringbone.framework="${FRAMEWORK}"' in dockerfile
    # The framework may be any of them, so the name comes before the labels that use it, in their stage.
    assert dockerfile.index(b"ARG FRAMEWORK\n") > dockerfile.index(b"# [4]")


def test_the_same_recipe_has_the_same_name():
    assert make_recipe("pytorch").tag("sha256:base") == make_recipe("pytorch").tag("sha256:base")


def test_every_change_changes_the_name(tmp_path, wheelhouse):
    lock = tmp_path / "lock.txt"
    lock.write_text("torch==2.13.0+cpu --hash=sha256:00\n")
    names = [
        make_recipe("pytorch").tag("sha256:base"),
        make_recipe("pytorch").tag("sha256:other"),
        make_recipe("pytorch", device="cuda").tag("sha256:base"),
        make_recipe("pytorch", base="ubuntu:24.04").tag("sha256:base"),
        make_recipe("pytorch", lock=lock).tag("sha256:base"),
        make_recipe("pytorch", wheelhouse=wheelhouse(TORCH)).tag("sha256:base"),
        make_recipe("pytorch", wheelhouse=wheelhouse(TORCH, content=b"other")).tag("sha256:base"),
        make_recipe("tensorflow").tag("sha256:base"),
    ]
    assert len(set(names)) == len(names)


def test_the_way_to_the_index_changes_no_name(tmp_path):
    ca = tmp_path / "ca.pem"
    ca.write_text(CERTIFICATE)
    recipe = make_recipe("pytorch", ca_bundle=ca, index={"PIP_INDEX_URL": "https://mirror/simple"})
    assert recipe.context.files["framework/settings"] == b"PIP_INDEX_URL=https://mirror/simple\n"
    assert recipe.tag("sha256:base") == make_recipe("pytorch").tag("sha256:base")


def test_pips_own_folder_of_wheels_may_lack_the_framework(wheelhouse):
    numpy = "numpy-2.4.6-cp311-cp311-any.whl"
    recipe = make_recipe("pytorch", find_links=wheelhouse(numpy, "huge-1.0-py3-none-any.whl"))
    assert [name for name in recipe.context.files if name.endswith(".whl") and "wheels" in name] == [
        f"framework/wheels/{numpy}"
    ]


def test_wheels_outside_of_the_lock_are_left_out(wheelhouse):
    recipe = make_recipe("pytorch", wheelhouse=wheelhouse(TORCH, "huge-1.0-py3-none-any.whl"))
    assert [name for name in recipe.context.files if name.endswith(".whl") and "wheels" in name] == [
        f"framework/wheels/{TORCH}"
    ]


def test_another_lock_gives_another_version(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text("torch==2.6.0+cpu --hash=sha256:00\n")
    assert make_recipe("pytorch", lock=lock).version == "2.6.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"framework": "jax"}, "framework 'jax': images are built for pytorch, .*, xgboost"),
        ({"device": "gpu"}, "device 'gpu': there is cpu and cuda"),
    ],
)
def test_unknown_frameworks_and_devices_are_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        make_recipe(**{"framework": "pytorch", **arguments})


def test_a_wheelhouse_without_the_framework_is_refused_with_the_remedy(wheelhouse):
    with pytest.raises(InputError, match=r"no wheel of torch 2\.13\.0\+cpu \(there is none of it\): pip download "):
        make_recipe("pytorch", wheelhouse=wheelhouse("numpy-2.4.6-cp311-cp311-any.whl"))


def test_a_wheelhouse_with_another_version_is_refused(wheelhouse):
    with pytest.raises(InputError, match=r"there is torch-2\.6\.0-cp311-cp311-any\.whl"):
        make_recipe("pytorch", wheelhouse=wheelhouse("torch-2.6.0-cp311-cp311-any.whl"))


def test_a_missing_wheelhouse(tmp_path):
    with pytest.raises(InputError, match=r"the wheelhouse .*none is not a folder"):
        make_recipe("pytorch", wheelhouse=tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "ca.pem cannot be read: No such file"),
        ("hello", "holds no certificate in PEM form"),
        (CERTIFICATE + "-----BEGIN PRIVATE KEY-----\n", "holds a private key; give the certificates alone"),
    ],
)
def test_a_wrong_ca_bundle(tmp_path, text, message):
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        make_recipe("pytorch", ca_bundle=path)


def test_a_lock_without_the_framework(tmp_path):
    lock = tmp_path / "lock.txt"
    lock.write_text("numpy==1.0\n")
    with pytest.raises(InputError, match="locks no single version of torch"):
        make_recipe("pytorch", lock=lock)
