"""Compile the native core of `herringbone_parallel.reduce` into a wheel or an editable install."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = "parallel/herringbone_parallel/reduce"


class NativeCore(BuildHookInterface[Any]):
    """Compiles the native core. Without a compiler, the wheel fits every platform and has only the core in Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the plugin's signature
        folder = Path(self.root) / _FOLDER
        # Load the module by its path, because Herringbone is not installed yet.
        spec = importlib.util.spec_from_file_location("build_native", folder / "build.py")
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is there
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        (folder / build.LIBRARY).unlink(missing_ok=True)
        try:
            build.compile_native(folder)
        except build.CompileError as error:
            print(f"herringbone: the core in Python will be used: {error}", file=sys.stderr)
            return
        build_data["artifacts"].append(f"{_FOLDER}/{build.LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
