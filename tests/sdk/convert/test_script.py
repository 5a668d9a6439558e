"""Scripts for AWS's SDK v2 and the results of `herringbone convert`, as literals."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

import herringbone
from herringbone.cli.__main__ import main
from herringbone.convert.names import COUNTERPARTS
from herringbone.convert.script import convert_script
from herringbone_contract.errors import InputError

V2 = '''\
"""My job."""
import boto3
import sagemaker
from sagemaker import get_execution_role
from sagemaker.pytorch import PyTorch  # the class
from sagemaker.inputs import TrainingInput as Data

role = get_execution_role()
session = sagemaker.Session()  # of the notebook

estimator = PyTorch(
    "train.py",  # what runs
    role=role,
    train_instance_count=2,
    instance_type="local_process",
    volume_size=100,
    debugger_hook_config=False,
    hyperparameters={"epochs": 3, "name": "größe"},
    sagemaker_session=session,
)
estimator.fit({"training": Data("s3://bucket/x")})
'''
CHANGED = '''\
"""My job."""
import boto3
from herringbone import PyTorch  # the class
from herringbone import TrainingInput as Data


estimator = PyTorch(
    "train.py",  # what runs
    instance_count=2,
    instance_type="local_process",
    volume_size=100,
    debugger_hook_config=False,
    hyperparameters={"epochs": 3, "name": "größe"},
)
estimator.fit({"training": Data("s3://bucket/x")})
'''
NOTES = """\
line 3: changed: import sagemaker: now gone
line 4: changed: from sagemaker import get_execution_role: now gone
line 5: changed: from sagemaker.pytorch import PyTorch: now from herringbone import PyTorch
line 6: changed: from sagemaker.inputs import TrainingInput as Data: now from herringbone import TrainingInput as Data
line 8: changed: role = get_execution_role(): removed, nothing else used it
line 9: changed: session = sagemaker.Session(): removed, nothing else used it
line 13: changed: role: removed; a job here needs no account, one on ml.* takes the caller's
line 14: changed: train_instance_count: now instance_count
line 16: note: volume_size: not used by a job on this machine; kept
line 19: changed: sagemaker_session: removed; a job here needs no account, one on ml.* takes the caller's"""


def test_a_whole_script():
    converted = convert_script(V2)
    assert converted.text == CHANGED
    assert "\n".join(map(str, converted.notes)) == NOTES
    assert converted.complete


def test_converting_twice_changes_nothing():
    assert convert_script(CHANGED).text == CHANGED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Through the module, under another name, and in a block.
        ("import sagemaker\nsagemaker.pytorch.PyTorch('a')", "import herringbone\nherringbone.PyTorch('a')"),
        ("import sagemaker.pytorch as s\ns.PyTorch('a')", "import herringbone\nherringbone.PyTorch('a')"),
        ("from sagemaker import pytorch\npytorch.PyTorch('a')", "import herringbone\nherringbone.PyTorch('a')"),
        ("import os, sagemaker\nos.getcwd()", "import os\nos.getcwd()"),
        ("def f():\n    from sagemaker.pytorch import PyTorch", "def f():\n    from herringbone import PyTorch"),
        ("try:\n    import sagemaker\nfinally:\n    pass", "try:\n    pass\nfinally:\n    pass"),
        # The first arguments of Estimator, which had no names.
        (
            "from sagemaker.estimator import Estimator\nEstimator('i', 'r', 1, 'local')",
            "from herringbone import Estimator\nEstimator(image_uri='i', role='r', instance_count=1, "
            "instance_type='local')",
        ),
        (
            "import sagemaker\nr = sagemaker.get_execution_role()\nsagemaker.estimator.Estimator('i', r, 1, 'local')",
            "import herringbone\nherringbone.Estimator(image_uri='i', instance_count=1, instance_type='local')",
        ),
        # The removed arguments are all arguments, or the last two.
        (
            "from sagemaker import Session\nfrom sagemaker.pytorch import PyTorch\n"
            "PyTorch(sagemaker_session=Session(),)",
            "from herringbone import PyTorch\nPyTorch()",
        ),
        (
            "import sagemaker as s\nfrom sagemaker.pytorch import PyTorch\n"
            "PyTorch('a', role=s.get_execution_role(), sagemaker_session=s.Session(),)",
            "from herringbone import PyTorch\nPyTorch('a',)",
        ),
        # The classes of libraries: their role goes, too, and the other arguments stay.
        *(
            (
                f"import sagemaker\nfrom sagemaker.{module} import {name}\n"
                f"{name}('py3', role=sagemaker.get_execution_role(), instance_count=1)",
                f"from herringbone import {name}\n{name}('py3', instance_count=1)",
            )
            for module, name in [
                ("huggingface", "HuggingFace"),
                ("sklearn", "SKLearn"),
                ("xgboost", "XGBoost"),
                ("mxnet", "MXNet"),
                ("estimator", "Framework"),
            ]
        ),
        # Names of SDK v1, names that other modules of AWS's have, and members of a class.
        (
            "import sagemaker\nfrom sagemaker.session import s3_input, TrainingInput\n"
            "sagemaker.s3_input('a')\ns3_input('b')",
            "import herringbone\nfrom herringbone import TrainingInput as s3_input, TrainingInput\n"
            "herringbone.TrainingInput('a')\ns3_input('b')",
        ),
        (
            "import sagemaker as sm\nfrom sagemaker.tuner import HyperparameterTuner as T\n"
            "w: sm.tuner.WarmStartTypes = sm.tuner.WarmStartTypes.TRANSFER_LEARNING.value\nT.attach('a')",
            "import herringbone\nfrom herringbone import HyperparameterTuner as T\n"
            "w: herringbone.WarmStartTypes = herringbone.WarmStartTypes.TRANSFER_LEARNING.value\nT.attach('a')",
        ),
        (
            "from sagemaker.estimator import EstimatorBase\nisinstance(x, EstimatorBase)",
            "from herringbone import Estimator as EstimatorBase\nisinstance(x, EstimatorBase)",
        ),
        (
            "from sagemaker.remote_function import remote\n@remote(instance_type='local', inputs=i)\ndef f(): pass",
            "from herringbone import remote\n@remote(instance_type='local', inputs=i)\ndef f(): pass",
        ),
        # Each function imports for itself.
        (
            "def f():\n    import sagemaker\n    sagemaker.inputs.TrainingInput(a)\n" * 2,
            "def f():\n    import herringbone\n    herringbone.TrainingInput(a)\n" * 2,
        ),
        # Arguments that say what is the case anyway, and names of jobs.
        (
            "from sagemaker.tuner import HyperparameterTuner\nfrom sagemaker.tensorflow import TensorFlow\n"
            "e = TensorFlow(script_mode=True, entry_point='a')\n"
            "t = HyperparameterTuner(e, 'loss')\nt.fit('x', logs=True, wait=False, verbose=False)\n"
            "e._current_job_name, e.latest_training_job.job_name",
            "from herringbone import HyperparameterTuner\nfrom herringbone import TensorFlow\n"
            "e = TensorFlow(entry_point='a')\n"
            "t = HyperparameterTuner(e, 'loss')\nt.fit('x', wait=False)\n"
            "e.latest_training_job.name, e.latest_training_job.name",
        ),
        # Several estimators in a dict, whose own methods are no estimator's.
        (
            "from sagemaker.pytorch import PyTorch\ne = {}\ne['a'] = PyTorch('a')\nfor k, v in e.items(): v.fit('x')",
            "from herringbone import PyTorch\ne = {}\ne['a'] = PyTorch('a')\nfor k, v in e.items(): v.fit('x')",
        ),
        ("print('no SDK here')", "print('no SDK here')"),
    ],
)
def test_a_few_lines(before, after):
    converted = convert_script(before)
    assert converted.text == after
    assert converted.complete


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "from sagemaker.chainer import Chainer\nChainer()",
            "use PyTorch, TensorFlow, MXNet, or Estimator with",
        ),
        ("from sagemaker.pytorch import PyTorchModel", "sagemaker.pytorch.PyTorchModel: no counterpart here"),
        ("from sagemaker.train import ModelTrainer", "SDK v3 is not converted; write herringbone.PyTorch"),
        (
            "from sagemaker.pytorch import PyTorch\ne = PyTorch('a')\ne.deploy(1)",
            "e.deploy: an estimator here trains",
        ),
        (
            "from sagemaker.pytorch import PyTorch\nPyTorch('a', rules=[1])",
            "rules: removed, since Herringbone does not have this feature",
        ),
        (
            "from sagemaker.pytorch import PyTorch\nPyTorch('a', rules=[R()])",
            "rules: removed, since Herringbone does not have this feature",
        ),
        ("from sagemaker.pytorch import PyTorch\nPyTorch('a', max_runs=1)", "did you mean max_run?"),
        ("from sagemaker.pytorch import PyTorch\nPyTorch('a', max_run='1')", "max_run: '1' is no time"),
        (
            "from sagemaker.pytorch import PyTorch\nPyTorch('a', distribution={'smdistribute': {}})",
            "Did you mean 'smdistributed'?",
        ),
        (
            "from sagemaker.pytorch import PyTorch\nPyTorch('a', train_max_run=1, max_run=2)",
            "train_max_run: max_run is given too; remove one",
        ),
        (
            "from sagemaker.remote_function import remote\n@remote(max_runtime_in_seconds=1)\ndef f(): pass",
            "max_runtime_in_seconds: no such option",
        ),
        (
            "from sagemaker.sklearn import SKLearn\nSKLearn('a', max_run='1')",
            "max_run: '1' is no time",
        ),
        (
            "import sagemaker\nr = sagemaker.get_execution_role()\nprint(r)",
            "sagemaker.get_execution_role: no counterpart here",
        ),
        ("from sagemaker.estimator import Estimator\nEstimator('i', *more)", "Estimator: the order of arguments"),
        ("from sagemaker.estimator import Estimator\nEstimator(1, 2, 3, 4, 5)", "Estimator: the order of arguments"),
        ("from sagemaker.pytorch import PyTorch\nPyTorch('a').fit(experiment_config=c)", "experiment_config: removed"),
        ("from sagemaker.tuner import HyperparameterTuner\nt = HyperparameterTuner(e, 'm')\nt.deploy()", "t.deploy: "),
        ("import importlib\nimportlib.import_module('sagemaker.pytorch')", "'sagemaker.pytorch': in a text"),
        ("def f(e: 'sagemaker.estimator.Estimator'): pass", "'sagemaker.estimator.Estimator': in a text"),
    ],
)
def test_code_that_cannot_be_converted_stays_and_is_named(script, message):
    converted = convert_script(script)
    assert not converted.complete
    assert [message in note.text for note in converted.notes if note.kind == "left"] == [True]


@pytest.mark.parametrize(
    ("script", "met"),
    [
        (
            "from sagemaker.pytorch import PyTorch\nfrom sagemaker.inputs import TrainingInput\n"
            "from sagemaker.workflow.steps import TrainingStep\n"
            "e = PyTorch('a', role=role)\narguments = e.fit({'x': TrainingInput('s3://b/x')})\n"
            "steps = []\nsteps.append(TrainingStep(name='t', step_args=arguments))",
            "sagemaker.workflow.steps.TrainingStep of line 7",
        ),
        (
            "import sagemaker.estimator, sagemaker.inputs\nclass Job:\n    def __init__(self):\n"
            "        self.e = sagemaker.estimator.Estimator('i', 'r', 1, 'local')\n"
            "        self.e.fit(sagemaker.inputs.TrainingInput('x'))\n"
            "    def step(self): return sagemaker.workflow.steps.TrainingStep(estimator=self.e)",
            "sagemaker.workflow.steps.TrainingStep of line 6",
        ),
        (
            "from sagemaker import LinearLearner\n"
            "from sagemaker.tuner import HyperparameterTuner, WarmStartConfig, WarmStartTypes\n"
            "l = LinearLearner(role='r')\n"
            "HyperparameterTuner(l, 'm', warm_start_config=WarmStartConfig(WarmStartTypes.TRANSFER_LEARNING, {'x'}))",
            "sagemaker.LinearLearner of line 3",
        ),
        (
            "from sagemaker.workflow.parameters import ParameterInteger\nfrom sagemaker.pytorch import PyTorch\n"
            "n = ParameterInteger(name='n')\ne = PyTorch('a', role='r', train_instance_count=n)\ne.deploy()",
            "sagemaker.workflow.parameters.ParameterInteger of line 3",
        ),
        # Through a class, a result, a parameter and a pipeline's property.
        (
            "from sagemaker.estimator import Framework\nfrom sagemaker.inputs import TrainingInput\n"
            "from sagemaker.workflow.steps import ProcessingStep, TrainingStep\nclass Mine(Framework): pass\n"
            "def make(): return Mine('a')\ndef step(e, x): return TrainingStep(estimator=e, inputs=x)\n"
            "s = ProcessingStep('p')\nstep(make(), x=[TrainingInput(s.properties.Outputs['a'].S3Uri)])",
            "sagemaker.workflow.steps.TrainingStep of line 6",
        ),
    ],
)
def test_what_meets_an_object_of_aws_stays_awss(script, met):
    converted = convert_script(script)
    assert converted.text == script
    assert [note.text for note in converted.notes if f"stays AWS's, as {met}" in note.text]


def test_what_meets_none_is_converted_beside_it():
    converted = convert_script(
        dedent("""\
        from sagemaker.pytorch import PyTorch, PyTorchModel
        from sagemaker.workflow.steps import TrainingStep
        TrainingStep(estimator=PyTorch("a"))
        e = PyTorch("b", rules=[Rule()], profiler_config=None)
        PyTorchModel(e.model_data)
        """)
    )
    assert converted.text == dedent("""\
        import herringbone
        from sagemaker.pytorch import PyTorch, PyTorchModel
        from sagemaker.workflow.steps import TrainingStep
        TrainingStep(estimator=PyTorch("a"))
        e = herringbone.PyTorch("b", profiler_config=None)
        PyTorchModel(e.model_data)
        """)


@pytest.mark.parametrize("before", ["a = 1; ", "if a: ", "if a:\n\t"])
def test_an_import_becomes_two_where_it_is(before):
    text = convert_script(f"{before}from sagemaker.pytorch import PyTorch, PyTorchModel").text
    separator = "\n\t" if "\n" in before else "; "
    assert text == f"{before}from herringbone import PyTorch{separator}from sagemaker.pytorch import PyTorchModel"


def test_names_of_a_star_import():
    converted = convert_script("from sagemaker import *\nfrom sagemaker.tuner import *\nIntegerParameter(1, Session())")
    assert converted.text == (
        "import herringbone\nfrom sagemaker import *\nfrom sagemaker.tuner import *\n"
        "herringbone.IntegerParameter(1, Session())"
    )
    assert [note.line for note in converted.left] == [1, 2, 3]


def test_each_public_name_is_converted():
    own = {"Measure", "TrainingJob", "attach", "log_metrics", "log_progress", "should_stop"}
    public = {name for name in herringbone.__all__ if not name.endswith("Error")}
    assert set(COUNTERPARTS.values()) == public - own


def test_a_role_that_something_else_uses_stays():
    script = dedent("""\
        from sagemaker import get_execution_role
        from sagemaker.pytorch import PyTorch, PyTorchModel
        role = get_execution_role()
        PyTorch("a", role=role)
        PyTorchModel("m", role=role)
        """)
    converted = convert_script(script)
    assert converted.text == script.replace(
        "from sagemaker.pytorch import PyTorch, PyTorchModel",
        "from herringbone import PyTorch\nfrom sagemaker.pytorch import PyTorchModel",
    )
    assert [note.line for note in converted.notes if note.kind == "left"] == [3, 5]


@pytest.mark.parametrize("argument", ["model_dir=False", "distribution=d", "rules=None", "**more", "max_run=limit()"])
def test_valid_arguments_stay(argument):
    script = f"from herringbone import TensorFlow\nTensorFlow(entry_point='a', {argument})"
    converted = convert_script(script.replace("from herringbone", "from sagemaker.tensorflow"))
    assert converted.text == script
    assert converted.complete


@pytest.mark.parametrize(
    ("instance_type", "notes"),
    [
        ("'ml.p3.2xlarge'", []),
        ("'local'", ["volume_kms_key: refused by a job on this machine", "volume_size: not used"]),
        ("chosen", ["volume_kms_key: refused by a job on this machine", "volume_size: not used"]),
    ],
)
def test_notes_on_options_without_effect_on_this_machine(instance_type, notes):
    call = f"PyTorch('a', instance_type={instance_type}, volume_size=100, volume_kms_key='k')"
    converted = convert_script(f"from sagemaker.pytorch import PyTorch\n{call}")
    no_image = "image_uri: missing, and no version of AWS's image either"
    assert any(no_image in note.text for note in converted.left) == (not notes)
    texts = [note.text for note in converted.notes if note.kind == "note"]
    assert [text.startswith(note) for text, note in zip(texts, notes, strict=True)] == [True] * len(notes)


def test_no_file_is_read_for_a_distribution():
    path = "{'smdistributed': {'modelparallel': {'enabled': True, 'parameters': 'nosuch.json'}}}"
    assert convert_script(f"from sagemaker.pytorch import PyTorch\nPyTorch('a', distribution={path})").complete


def test_a_text_that_is_no_python_is_refused():
    with pytest.raises(InputError, match=r"job\.py: no Python that this version can parse: "):
        convert_script("print 1", name="job.py")


def test_the_command(tmp_path, capsys):
    path = tmp_path / "job.py"
    path.write_text(V2, encoding="utf-8-sig")  # as editors of Windows save it
    assert main(["convert", str(path)]) == 0
    assert capsys.readouterr() == (CHANGED, NOTES + "\n")
    assert main(["convert", "--diff", str(path)]) == 0
    assert "-from sagemaker.pytorch import PyTorch  # the class\n" in capsys.readouterr().out
    path.write_text("from sagemaker.chainer import Chainer\nimport sagemaker.pytorch\nsagemaker.pytorch.PyTorch('a')\n")
    assert main(["convert", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("line 1: left: sagemaker.chainer.Chainer: ")
    assert "line 2: changed: " in lines[0]
    assert main(["convert", "--json", str(path)]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["complete"], result["notes"][0]["kind"], result["notes"][0]["line"]) == (False, "left", 1)
    (left,) = result["left"]
    assert (left["line"], left["name"]) == (1, "sagemaker.chainer.Chainer")
    assert left["why"].startswith("no counterpart here")
    assert left["instead"] == "use PyTorch, TensorFlow, MXNet, or Estimator with image_uri"
    path.rename(tmp_path / "job.ipynb")
    assert main(["convert", str(tmp_path / "job.ipynb")]) == 2
    assert "a notebook; make a script of it first: jupyter nbconvert" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "nosuch.py")]) == 2
    assert "nosuch.py: cannot be read" in capsys.readouterr().err
