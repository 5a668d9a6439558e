"""Run the tests and benchmarks of CUDA devices, each with a time limit, and write one report of all of them.

Usage: scripts/gpu [--dry] [--only PART ...] [--minutes 9] [--output FOLDER] [--json]

The report is gpu.json, gpu.md and gpu.log in the folder, written again after each part. A part that fails, hangs or
cannot run here costs no other part. --dry runs all parts on the CPU with tiny sizes. Exit code: 0 if no part failed,
1 if one did, 2 if nothing could start, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parts import PARTS, Part, UnknownPartError, allowance, chosen
from report import Outcome, Report, Status, judge
from wheels import WheelsError, install, missing

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_SOURCES = ("sdk", "contract", "entrypoints", "parallel", ".")
# A program that is told to end stops its jobs and ranks.
_GRACE_SECONDS = 6.0
_START_SECONDS = 180.0
_LAST_LINES = 20


class CannotStartError(Exception):
    """This Python cannot run the parts."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--minutes", type=float, default=9.0, help="of all parts together (%(default)s)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(os.environ.get("OUT") or ROOT / "gpu-results"),
        help="folder of the report (default: $OUT, else gpu-results)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON, not as a table")
    return parser.parse_args()


def environment(site: Path, *, dry: bool) -> dict[str, str]:
    """Return the environment of all programs: our sources, then carried packages, then this Python's own."""
    path = [*(str(ROOT / source) for source in _SOURCES), str(site), os.environ.get("PYTHONPATH", "")]
    programs = [str(site / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PATH": os.pathsep.join(programs),
        "PYTHONUNBUFFERED": "1",
        "HERRINGBONE_REPORT": "off",
        "HF_HUB_OFFLINE": "1",
    }
    if dry:
        # Also on a machine with a device: a dry run shows the same everywhere.
        own["CUDA_VISIBLE_DEVICES"] = ""
    return {**os.environ, **own}


class Runner:
    """Runs programs one after the other, and keeps the report in a folder."""

    def __init__(self, options: argparse.Namespace, environ: Mapping[str, str], report: Report, end: float) -> None:
        self._options, self._environ, self._end = options, environ, end
        self.report = report
        self._log = options.output / "gpu.log"
        self._log.write_text("")

    def run(self, parts: Sequence[Part]) -> None:
        """Run the parts; after Ctrl-C, note those that did not run, and raise `KeyboardInterrupt`."""
        for index, part in enumerate(parts):
            started = time.monotonic()
            try:
                outcome = self._outcome(part, allowance(self._end - started, parts, index))
            except KeyboardInterrupt:
                self.report.add(Outcome(part.name, Status.INTERRUPTED, time.monotonic() - started))
                self.write()
                raise
            self.report.add(outcome)
            self.write()
            print(
                f"{outcome.part:24} {outcome.status.value:16} {outcome.seconds:6.1f} s  {outcome.reason}",
                file=sys.stderr,
            )

    def write(self) -> None:
        """Write the report as it is now. A reader never sees half a file."""
        for name, text in (("gpu.json", self.report.json()), ("gpu.md", self.report.markdown())):
            partial = self._options.output / f".{name}"
            partial.write_text(text)
            partial.replace(self._options.output / name)

    def _outcome(self, part: Part, seconds: float) -> Outcome:
        lacking = [name for name in part.needs if not self._has(name)]
        if lacking:
            return Outcome(part.name, Status.SKIPPED, 0.0, reason=f"this Python lacks {', '.join(lacking)}")
        if seconds <= 0:
            return Outcome(part.name, Status.OUT_OF_TIME, 0.0, reason="no time was left to start it")
        program, *arguments = part.command(dry=self._options.dry)
        command = [sys.executable, str(ROOT / program), *arguments]
        started = time.monotonic()
        with tempfile.TemporaryFile() as output:
            try:
                code = self._wait(command, output, seconds)
            finally:
                output.seek(0)
                text = output.read().decode(errors="replace")
                with self._log.open("a") as log:
                    log.write(f"=== {part.name}: {' '.join(command)}\n{text}\n")
        taken = time.monotonic() - started
        if code is None:
            last = [line for line in text.splitlines() if line.strip()][-_LAST_LINES:]
            return Outcome(part.name, Status.OUT_OF_TIME, taken, reason=f"limit {seconds:.0f} s", last_lines=last)
        return judge(part.name, code, taken, text, lines=_LAST_LINES)

    def _wait(self, command: Sequence[str], output: Any, seconds: float) -> int | None:
        """Return the exit code, None for a program that needed longer than `seconds`."""
        process = subprocess.Popen(
            command, env=self._environ, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end_group(process)

    def _has(self, name: str) -> bool:
        return importlib.util.find_spec(name) is not None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a program and its ranks: first by SIGTERM, so that the program can stop its jobs."""
    for number, grace in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def prepare(site: Path, *, dry: bool) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the environment of the programs and the facts about the machine. Raises `CannotStartError`."""
    lacking = missing()
    if lacking:
        try:
            install(lacking, site)
        except WheelsError as error:
            raise CannotStartError(str(error)) from error
        sys.path.insert(0, str(site))
        importlib.invalidate_caches()
    environ = environment(site, dry=dry)
    probe = _run([str(HERE / "machine.py")], environ)
    if probe.returncode:
        raise CannotStartError(f"{sys.executable} cannot import torch: {probe.stderr.strip()[-1_000:]}")
    machine = json.loads(probe.stdout.splitlines()[-1])
    if machine["devices"] == ["cpu"] and not dry:
        raise CannotStartError(f"{sys.executable} sees no CUDA device; --dry runs all parts on the CPU")
    machine["carried"] = lacking
    machine["native core"] = _native(environ)
    return environ, machine


def _native(environ: Mapping[str, str]) -> str:
    """Compile the native core of sums, unless it is there. Return its state, in words."""
    if list((ROOT / "parallel").glob("**/_native.so")):
        return "there"
    build = _run(["-m", "herringbone_parallel.reduce.build"], environ)
    return "compiled" if build.returncode == 0 else f"not compiled: {build.stderr.strip()[-200:]}"


def _run(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_START_SECONDS,
        check=False,
    )


def main() -> int:
    options = parse()
    end = time.monotonic() + 60 * options.minutes
    # A machine that takes its time back sends SIGTERM: the report is then as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as site:
        try:
            parts = chosen(options.only)
            environ, machine = prepare(Path(site), dry=options.dry)
        except (UnknownPartError, CannotStartError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return 2
        options.output.mkdir(parents=True, exist_ok=True)
        runner = Runner(options, environ, Report(machine, options.dry), end)
        interrupted = False
        try:
            runner.run(parts)
        except KeyboardInterrupt:
            interrupted = True
        report = runner.report
        print(json.dumps(report.as_dict()) if options.json else report.markdown())
    if interrupted:
        return 130
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
