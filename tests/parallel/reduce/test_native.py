"""The compiled core by itself: what it exports, what it leaves behind, and what it makes of broken headers."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripts import native_layers

from herringbone_parallel.reduce import build
from herringbone_parallel.reduce.cores import native
from herringbone_parallel.reduce.cores.base import Role

PROGRAMS = Path(__file__).parent / "native"
OPTIONS = (
    "-std=gnu11",
    "-O1",
    "-g",
    "-pthread",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Werror",
)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
# What hb_new calls and can fail, and what gives memory back.
CALLS = ("malloc", "calloc", "strdup", "free", "epoll_create1", "epoll_ctl", "eventfd", "pthread_create")


def compiler() -> str:
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if shutil.which(name):
            return name
    pytest.skip("there is no C compiler, and so no native core")


def program(folder: Path, name: str, replaced: Sequence[str]) -> Path:
    """Compile a program with the core's sources and sanitizers; return its path.

    The program's own functions take the place of the `replaced` ones.
    """
    sources = [path for path in sorted(build.SOURCES.rglob("*.c")) if path.parent == build.SOURCES]
    result = folder / name
    command = [compiler(), *OPTIONS, *SANITIZERS, f"-I{build.SOURCES}", PROGRAMS / f"{name}.c", *sources]
    subprocess.run([*command, *(f"-Wl,--wrap={function}" for function in replaced), "-o", result], check=True)
    return result


def run(*command: object) -> str:
    """Run a program without a sanitizer's library that this Python may have been started with."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    # Leaks are counted by the program itself: the sanitizer's own search needs ptrace, which containers may forbid.
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_library_exports_only_its_interface(tmp_path: Path) -> None:
    """A host program's `now` replaced the library's own, when that was exported."""
    compiler()
    library = build.compile_native(tmp_path)
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    exported = {line.split()[-1] for line in lines}
    assert {"hb_abi", "hb_new", "hb_submit", "hb_fabric_open"} <= exported
    assert not [name for name in exported if not name.startswith("hb_")]


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    count, _, rest = run(program(tmp_path, "fail_start", CALLS)).partition(" ")
    assert rest == "failures left nothing behind\n"
    # Links, rings, descriptors, a thread: less would mean that calls were not replaced.
    assert int(count) > 30


def test_broken_headers_are_refused(tmp_path: Path) -> None:
    """About 20,000 headers: before they were checked in 64 bits, a helper summed beyond its memory."""
    output = run(program(tmp_path, "fuzz", ("pthread_create", "pthread_join")), 6_000, 1)
    assert output.startswith("6000 connections refused, ")
    # Most connections begin with messages that are in order, or the sums behind the parser would not be reached.
    assert int(output.split()[5]) > 1_000


@pytest.mark.parametrize(
    ("code", "breach"),
    [
        ('#include "flow.h"', ["slots.c: it includes flow.h of a higher layer"]),
        ("void f(void) { flow_run(0); }", ["slots.c: it uses flow_run of flow.c, a higher layer"]),
        ("/* flow_run, later */", []),
    ],
)
def test_a_call_to_a_higher_layer_is_noticed(code: str, breach: list[str]) -> None:
    sources = {"slots.c": code, "flow.c": "int flow_run(struct core *core) {\n}\n", "flow.h": ""}
    assert native_layers.breaches(sources) == breach


@pytest.mark.parametrize("change", ["ring_bytes", "max_chunks", "chunk_bytes", "members", "lanes"])
def test_a_core_whose_sizes_are_zero_does_not_start(change: str) -> None:
    """Regression: 0 chunks in a hello divided by zero, which ended the helper's process."""
    library = native.library()
    if library is None:
        pytest.skip("there is no native core")
    ours, theirs = socket.socketpair()
    spec = native._LinkSpec(ours.detach(), Role.PEER, 0, 0, b"a rank", 0, 0)
    sizes = {"chunk_bytes": 64, "ring_bytes": 256, "max_chunks": 4, "members": 1, "lanes": 1}
    values = {"label": b"it", "member": -1, "local_ranks": 1, "links": 1, "silence": 60.0, "late": 60.0}
    config = native._Config(**{**values, **sizes, change: 0}, specs=(native._LinkSpec * 1)(spec))
    assert library.hb_new(ctypes.byref(config)) is None
    # It has closed the link, as always when it fails.
    assert theirs.recv(1) == b""
    theirs.close()
