"""A notebook, executed headless in a real kernel, with real jobs of this machine."""

import re

import nbclient
import nbformat
import pytest

SCRIPT = """
import os, sys, time
for step in range(300):
    print(f"step={step} loss={1 / (1 + step):.6f}")
time.sleep(float(sys.argv[-1]) if sys.argv[-1] != "fail" else 0)
if sys.argv[-1] == "fail":
    raise ValueError("bad batch")
"""
CELLS = [
    """
import os, signal, threading, time
from herringbone import PyTorch
settings = {"instance_type": "local_process", "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]}
def estimator(end):
    return PyTorch("train.py", hyperparameters={"end": end}, **settings)
job = estimator("0.2").fit()
""",
    "job",
    "job.metrics()",
    'estimator("fail").fit()',
    'lines = estimator("0").fit(logs="All").logs()',
    # The square button of a notebook sends SIGINT to its kernel.
    """
def interrupt():
    while not stopped.jobs or stopped.jobs[0].secondary_status != "Training":
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
stopped = estimator("60")
threading.Thread(target=interrupt).start()
stopped.fit()
""",
    "stopped.latest_training_job.status, sum(1 for line in lines)",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of the cells of one notebook."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "train.py").write_text(SCRIPT)
    environment = pytest.MonkeyPatch()
    environment.setenv("HERRINGBONE_HOME", str(folder / "home"))
    # Without the user's own profile and history.
    environment.setenv("IPYTHONDIR", str(folder / "ipython"))
    environment.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    kernels = nbclient.NotebookClient(notebook, timeout=60, allow_errors=True, resources={"metadata": {"path": folder}})
    try:
        kernels.execute()
    finally:
        environment.undo()
    return [cell.outputs for cell in notebook.cells]


def texts(outputs, name=None):
    return "".join(output.text for output in outputs if output.output_type == "stream" and name in (None, output.name))


def shown(outputs):
    """Return the texts of the one display of a cell."""
    (display,) = [output for output in outputs if output.output_type == "display_data"]
    return display.data


def test_a_cell_with_fit_has_one_line_and_the_loss(outputs):
    fit = outputs[0]
    assert texts(fit).count("\n") == 1
    line, end = shown(fit)["text/plain"].splitlines()
    assert re.fullmatch(r"train-[\d-]+: Completed  loss 0.003333", line)
    assert re.fullmatch(r"job train-[\d-]+: Completed after [\d.]+ s, no model", end)
    assert "<svg" in shown(fit)["text/html"]
    for table in outputs[1:3]:
        assert "<title>loss: 300 values, the last is 0.003333</title>" in table[0].data["text/html"]


def test_a_failure_shows_the_error_and_the_last_lines_of_the_log(outputs):
    assert ": Failed" in shown(outputs[3])["text/plain"]
    (error,) = [output for output in outputs[3] if output.output_type == "error"]
    for part in ("rank 0 on algo-1: ValueError: bad batch", "at train.py:7 in <module>", "step=299 loss=0.003333"):
        assert part in error.evalue


def test_the_word_all_asks_for_every_line(outputs):
    assert texts(outputs[4], "stdout").count("loss=") == 300
    assert "display_data" not in [output.output_type for output in outputs[4]]


def test_an_interrupt_stops_the_job(outputs):
    assert "stopping job" in texts(outputs[5])
    assert ": Stopped" in shown(outputs[5])["text/plain"]
    assert outputs[5][-1].ename == "KeyboardInterrupt"
    assert outputs[6][0].data["text/plain"] == "('Stopped', 300)"
