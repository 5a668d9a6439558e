"""Versions of the ranks' packages, by the names of their folders of metadata."""

import sys

from herringbone_entry.preparation.prepare import find_versions


def test_versions_are_those_that_the_ranks_import(tmp_path):
    library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    overlay, here = tmp_path / "overlay" / library, tmp_path / "here"
    for folder, names in (
        (overlay, ["torch-2.4.1.dist-info", "numpy-2.0.dist-info"]),
        (here, ["torch-2.1.0+cpu.dist-info", "tensorflow_cpu-2.15.0.dist-info", "mxnet-1.9.1-py3.11.egg-info"]),
        (here, ["torchvision-0.16.dist-info", "torch", "herringbone-0.1.0.dist-info"]),
    ):
        for name in names:
            (folder / name).mkdir(parents=True)
    path = ["/no/such", str(here), str(tmp_path / "file.zip")]
    python = ".".join(map(str, sys.version_info[:3]))
    packages = {"tensorflow": "2.15.0", "mxnet": "1.9.1", "herringbone": "0.1.0"}
    assert find_versions(str(tmp_path / "overlay/bin/python"), path) == {
        "Python": python,
        "torch": "2.4.1",
        **packages,
    }
    assert find_versions("/usr/bin/python-of-nobody", path) == {"Python": python, "torch": "2.1.0+cpu", **packages}
