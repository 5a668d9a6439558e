"""The process that measures: it ends with the user's Ctrl-C, and its children with it."""

import signal
import time

from tests.sdk.conftest import running_in

PROGRAM = """
import os, sys
from pathlib import Path
from herringbone.prediction.measuring import run_program
child = "import subprocess, time; subprocess.Popen(['sleep', '60']); print('measure: up', flush=True); time.sleep(60)"
run_program(
    [sys.executable, "-c", child], os.environ, Path.cwd(), timeout=60, show=lambda line: print(line, flush=True)
)
"""


def test_ctrl_c_ends_the_script_and_its_children(home, start_python):
    process = start_python(PROGRAM)
    assert process.stdout.readline() == "up\n"
    assert len(running_in(home.path)) == 4
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert running_in(home.path) == {}


def test_a_second_ctrl_c_leaves_nothing_behind_either(home, start_python):
    # The script ignores the first one's SIGTERM, so that the second arrives while its end is awaited.
    stubborn = PROGRAM.replace('child = "', 'child = "import signal; signal.signal(15, signal.SIG_IGN); ')
    process = start_python(stubborn)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    assert running_in(home.path) == {}


def test_a_kill_ends_the_script_and_its_children_as_well(home, start_python):
    process = start_python(PROGRAM)
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.wait(20)
    end = time.monotonic() + 20
    while running_in(home.path) and time.monotonic() < end:
        time.sleep(0.02)
    assert running_in(home.path) == {}
