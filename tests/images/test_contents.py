"""The content of an image, layer by layer, and training in it under a read-only root."""

import json
import subprocess
import tarfile
import tempfile
from pathlib import PurePosixPath

import pytest

pytestmark = pytest.mark.docker

TRAINING = """
import os, torch
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(64, 4)
for step in range(50):
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
assert loss < 0.01, loss
torch.save(model.state_dict(), os.environ["SM_MODEL_DIR"] + "/model.pt")
"""
COMPILERS = {"cc", "gcc", "g++", "c++", "clang", "nvcc", "ld", "as", "make"}


def run(image, *command, **options):
    command = ["docker", "run", "--rm", "--network", "none", image, *command]
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="module")
def layers(engine, image):
    """Every file of every layer, even if a later layer hides it: (path, size, first bytes)."""
    with tempfile.TemporaryFile() as saved:
        for piece in engine.get_image(image):
            saved.write(piece)
        saved.seek(0)
        with tarfile.open(fileobj=saved) as archive:
            manifest = json.load(archive.extractfile("manifest.json"))
            return [file for layer in manifest[0]["Layers"] for file in files(archive.extractfile(layer))]


def files(layer):
    with tarfile.open(fileobj=layer) as archive:
        return [
            (PurePosixPath("/", entry.name), entry.size, archive.extractfile(entry).read(64) if entry.isfile() else b"")
            for entry in archive
            if not entry.isdir()
        ]


def test_no_layer_holds_a_private_key(layers):
    assert len(layers) > 10_000
    assert [path for path, _, head in layers if head.startswith(b"-----BEGIN") and b"PRIVATE KEY" in head] == []


def test_no_layer_holds_a_compiler_or_a_server(layers):
    binaries = {path.name for path, _, _ in layers if path.parent.name in ("bin", "sbin")}
    assert binaries & (COMPILERS | {"sshd", "ssh-keygen"}) == set()
    assert {"train", "mpirun", "python3"} <= binaries


def test_no_layer_holds_files_that_only_the_build_needed(layers):
    leftovers = [
        path
        for path, _, _ in layers
        if path.suffix in (".whl", ".deb") or path.is_relative_to("/build") or path.name == "ca.pem"
        if "ensurepip" not in path.parts
    ]
    caches = ("/root/.cache", "/var/lib/apt/lists", "/var/cache/apt")
    leftovers += [path for path, size, _ in layers for cache in caches if path.is_relative_to(cache) and size]
    assert leftovers == []


def test_modules_are_compiled_in_the_image(layers):
    """Under a read-only root Python could not store compiled modules, and would compile them at every start."""
    compiled = {path.name.partition(".")[0] for path, _, _ in layers if path.suffix == ".pyc"}
    assert {"functional", "coordinator", "hyperparameters", "argparse"} <= compiled


def test_the_labels_describe_the_image(engine, image):
    config = engine.inspect_image(image)["Config"]
    labels = config["Labels"]
    assert {name: labels[f"dev.herringbone.{name}"] for name in ("contract", "framework", "device", "version")} == {
        "contract": "1",
        "framework": "pytorch",
        "device": "cpu",
        "version": labels["org.opencontainers.image.version"],
    }
    assert labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert (config["Cmd"], config["Entrypoint"] or [], config["StopSignal"]) == (["train"], [], "SIGTERM")


def test_the_bill_of_materials_lists_python_s_and_the_system_s_packages(image):
    listed = json.loads(run(image, "cat", "/usr/share/herringbone/sbom.cdx.json"))
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.5")
    versions = {component["name"]: component["version"] for component in listed["components"]}
    frozen = dict(line.split("==") for line in run(image, "pip", "list", "--format", "freeze").split())
    assert {name: versions[name.lower().replace("_", "-")] for name in frozen} == frozen
    packages = run(image, "dpkg-query", "-W", "-f", "${Package} ${Version}\n").splitlines()
    assert dict(line.split() for line in packages).items() <= versions.items()


@pytest.mark.parametrize("user", ["1000", "4711:4711", "0"])
def test_any_user_can_train_under_a_read_only_root(image, tmp_path, user):
    tree = tmp_path / "ml"
    (tree / "input" / "config").mkdir(parents=True)
    (tree / "code").mkdir()
    (tree / "code" / "train.py").write_text(TRAINING)
    config = {
        "hyperparameters": {"sagemaker_program": '"train.py"', "sagemaker_submit_directory": '"/opt/ml/code"'},
        "inputdataconfig": {},
        "resourceconfig": {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"},
    }
    for name, content in config.items():
        (tree / "input" / "config" / f"{name}.json").write_text(json.dumps(content))
    for name in ("model", "output"):
        (tree / name).mkdir()
        (tree / name).chmod(0o777)
    command = ["docker", "run", "--rm", "--read-only", "--user", user, "--tmpfs", "/tmp", "--network", "none"]
    done = subprocess.run([*command, "-v", f"{tree}:/opt/ml", image], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tree / "model" / "model.pt").stat().st_uid == int(user.partition(":")[0])


def test_the_user_has_a_name(image):
    assert run(image, "sh", "-c", "id -un 1000; getent passwd 1000 | cut -d: -f6").split() == ["trainer", "/tmp"]
