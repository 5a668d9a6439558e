"""What users may import, and what importing costs."""

import subprocess
import sys

import herringbone


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_list_is_what_can_be_imported():
    for name in herringbone.__all__:
        assert getattr(herringbone, name).__name__ == name
    assert dir(herringbone) == sorted(herringbone.__all__)


def test_the_list_holds_every_error_of_the_tree_that_a_client_can_meet():
    from herringbone_contract import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree - set(herringbone.__all__) == {"ParallelError"}  # raised in the user's script only


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(herringbone, "Session")


def test_importing_loads_nothing_heavy():
    loaded = run("import sys, herringbone; print(' '.join(sorted(sys.modules)))").split()
    assert not {"msgspec", "yaml", "sqlite3", "boto3", "docker", "numpy", "torch"} & set(loaded)


def test_an_estimator_loads_no_framework_and_no_cloud():
    loaded = run(
        "import sys; from herringbone import PyTorch; PyTorch('t.py', instance_type='local_process');"
        "print(' '.join(sorted(sys.modules)))"
    ).split()
    assert not {"boto3", "botocore", "docker", "numpy", "torch", "yaml"} & set(loaded)


def test_the_controller_starts_lean():
    """The user waits for it: typing, dataclasses, pathlib and sqlite cost it 30 ms of his first line's 250."""
    loaded = run("import sys, herringbone.controller.__main__; print(' '.join(sorted(sys.modules)))").split()
    assert not {"msgspec", "sqlite3", "dataclasses", "pathlib", "subprocess", "tarfile", "typing"} & set(loaded)


def test_windows_is_refused_politely():
    """There the standard library has no fcntl, and the refusal was a ModuleNotFoundError."""
    said = run(
        "import os, sys; sys.modules['fcntl'] = None\n"
        "from herringbone.backends.process import backend; os.name = 'nt'\n"
        "try: backend.make_backend()\n"
        "except backend.UnsupportedError as error: print(error)"
    )
    assert said.startswith("instance_type 'local_process' needs a POSIX system")


def test_importing_is_quick():
    took = run("import time; start = time.perf_counter(); import herringbone; print(time.perf_counter() - start)")
    assert float(took) < 0.15
