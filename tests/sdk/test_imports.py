"""The public names, and the cost of importing them."""

import importlib.util
import subprocess
import sys

import pytest

import herringbone


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_every_public_name_can_be_imported():
    for name in herringbone.__all__:
        assert getattr(herringbone, name).__name__ == name
    assert dir(herringbone) == sorted(herringbone.__all__)


def test_every_error_that_a_client_can_catch_is_public():
    from herringbone_contract import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree - set(herringbone.__all__) == {"ParallelError", "HookError"}  # raised in the user's script only


@pytest.mark.parametrize(
    "path",
    [
        "herringbone.aws.image_uris",
        "herringbone.s3.front.app",
        "herringbone_contract.errors",
        "herringbone_parallel.run_log",
        "herringbone_parallel.reduce.api",
        "herringbone_parallel.tensorflow.data_parallel.api",
        "herringbone_parallel.tensorflow.model_parallel.api",
        "herringbone_parallel.tensorflow.recipes.api",
        "herringbone_parallel.torch.checkpoint.api",
        "herringbone_parallel.torch.data_parallel.api",
        "herringbone_parallel.torch.model_parallel.api",
        "herringbone_parallel.torch.recipes.api",
        "herringbone_parallel.torch.sharding.api",
    ],
)
def test_paths_that_pages_and_examples_import_stay(path):
    assert importlib.util.find_spec(path) is not None


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(herringbone, "Session")


def test_importing_loads_nothing_heavy():
    loaded = run("import sys, herringbone; print(' '.join(sorted(sys.modules)))").split()
    assert not {"msgspec", "yaml", "sqlite3", "boto3", "docker", "numpy", "torch", "click", "rich"} & set(loaded)


def test_an_estimator_loads_no_framework_and_no_cloud():
    loaded = run(
        "import sys; from herringbone import PyTorch; PyTorch('t.py', instance_type='local_process');"
        "print(' '.join(sorted(sys.modules)))"
    ).split()
    assert not {"boto3", "botocore", "docker", "numpy", "torch", "yaml", "click", "rich"} & set(loaded)
    # A tenth of a second altogether: no index, no renderer, no view.
    assert not {"sqlite3", "html", "shutil", "herringbone.show", "herringbone.views", "herringbone.records"} & set(
        loaded
    )


def test_the_controller_starts_lean():
    """The user waits for it: typing, dataclasses, pathlib and sqlite take 30 of the 250 ms to the first line."""
    loaded = run("import sys, herringbone.controller.__main__; print(' '.join(sorted(sys.modules)))").split()
    assert not {"msgspec", "sqlite3", "dataclasses", "pathlib", "subprocess", "tarfile", "typing", "rich"} & set(loaded)


def test_windows_is_refused_politely():
    """Windows has no fcntl; without a check the user would get a ModuleNotFoundError."""
    message = run(
        "import os, sys; sys.modules['fcntl'] = None\n"
        "from herringbone.backends.process import backend; os.name = 'nt'\n"
        "try: backend.make_backend()\n"
        "except backend.UnsupportedError as error: print(error)"
    )
    assert message.startswith("instance_type 'local_process' needs a POSIX system")


def test_importing_is_quick():
    seconds = run("import time; start = time.perf_counter(); import herringbone; print(time.perf_counter() - start)")
    assert float(seconds) < 0.15
