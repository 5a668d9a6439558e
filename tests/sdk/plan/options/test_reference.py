"""The typed signatures of the estimators, the documentation of their options, and the backends that use each option."""

import inspect
import types
import typing

import msgspec
import pytest

from herringbone import Estimator, Framework, MXNet, PyTorch, TensorFlow
from herringbone.backends.docker import review as docker
from herringbone.backends.kubernetes import review as kubernetes
from herringbone.backends.process import review as process
from herringbone.backends.review.checks import OF_LINES, REFUSED, UNUSED
from herringbone.backends.sagemaker import review as sagemaker
from herringbone.backends.slurm import review as slurm
from herringbone.backends.ssh import review as ssh
from herringbone.plan.options import declared as options_dict
from herringbone.plan.options.names import ESTIMATOR_ARGUMENTS, HUGGING_FACE_VERSIONS
from herringbone.plan.options.reference import BACKENDS, OptionRow, option_rows
from herringbone.plan.options.typed import Options

ESTIMATORS = [
    (Estimator, options_dict.OptionsDict),
    (PyTorch, options_dict.ScriptOptions),
    (MXNet, options_dict.ScriptOptions),
    (TensorFlow, options_dict.TensorFlowOptions),
    (Framework, options_dict.FrameworkOptions),
]
ROWS = {row.name: row for row in option_rows()}


@pytest.mark.parametrize(("estimator", "options"), ESTIMATORS)
def test_the_constructor_names_every_option_once(estimator, options):
    """Type checkers refuse a name that is an argument of its own and a key of `**options`."""
    own = set(inspect.signature(estimator.__init__).parameters) - {"self", "options", "model_dir"}
    assert own.isdisjoint(options.__optional_keys__)
    assert own | options.__optional_keys__ == {*Options.__struct_fields__, *ESTIMATOR_ARGUMENTS}


@pytest.mark.parametrize(("estimator", "_options"), ESTIMATORS)
def test_help_and_notebooks_see_every_option_with_its_type_and_default(estimator, _options):
    parameters = inspect.signature(estimator).parameters
    assert set(parameters) - {"model_dir"} == {*Options.__struct_fields__, *ESTIMATOR_ARGUMENTS}
    assert str(parameters["max_run"]) == "max_run: 'int | str | None' = 86400"
    assert str(parameters["input_mode"]) == "input_mode: \"'File' | 'Pipe' | 'FastFile' | None\" = 'File'"
    assert {name: parameters[name].default for name in Options.__struct_fields__} == {
        **{name: getattr(Options(), name) for name in Options.__struct_fields__},
        # The constructors' own arguments have AWS's defaults.
        **dict.fromkeys(("framework_version", "py_version")),
    }


def test_a_constructor_of_the_users_own_keeps_its_signature():
    class Mine(PyTorch):
        def __init__(self, script: str) -> None:
            super().__init__(script, instance_type="local_process")

    assert list(inspect.signature(Mine).parameters) == ["script"]


def test_every_argument_has_one_row_with_a_sentence():
    assert sorted(ROWS) == sorted(
        {*Options.__struct_fields__, *ESTIMATOR_ARGUMENTS, "model_dir", *HUGGING_FACE_VERSIONS}
    )
    assert len(ROWS) == len(option_rows())
    for row in option_rows():
        assert row.doc.endswith("."), row
        assert len(row.doc) < 140, row
        assert row.section, row
        assert not row.section.endswith("."), row
        assert set(row.backends) <= set(BACKENDS), row
    assert ROWS["shm_size"] == OptionRow(
        "shm_size",
        "int | str",
        None,
        "bytes",
        'The size of /dev/shm in a container: a number, or text such as "2g".',
        ("local", "ssh", "k8s"),
        "The code and its environment",
    )


@pytest.mark.parametrize(("estimator", "_options"), ESTIMATORS)
def test_the_docstring_documents_the_constructors_own_arguments(estimator, _options):
    """Editors take the text of these from here, and the text of all others from options_dict.py."""
    own = [name for name in inspect.signature(estimator.__init__).parameters if name not in ("self", "options")]
    text = inspect.getdoc(estimator).partition("Args:\n")[2]
    assert text.splitlines() == [f"    {name}: {ROWS[name].doc}" for name in own]


def test_the_types_are_those_that_the_options_take():
    """Users may write more than the converted type holds, such as a list for a tuple or a text for a time."""
    wider = {"max_run", "max_wait", "hang_timeout", "keep_alive_period_in_seconds", "track", "notify", "idle_timeout"}
    for field in msgspec.structs.fields(Options):
        hint = typing.get_type_hints(options_dict.OptionsDict)[field.name]
        assert type(None) in typing.get_args(hint) or hint is typing.Any, field.name
        plain = {kind for kind in _kinds(field.type) if kind in (int, str, bool)}
        written = {kind for kind in _kinds(hint) if kind in (int, str, bool)}
        assert plain == written - ({str} if field.name in wider else set()), field.name


def _kinds(hint):
    if typing.get_origin(hint) is typing.Annotated:
        return _kinds(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(hint) for kind in _kinds(part)}
    return {hint}


@pytest.mark.parametrize(
    ("backend", "unused", "refused"),
    [
        (
            "local_process",
            {*UNUSED, *process._UNUSED, *HUGGING_FACE_VERSIONS, "image_uri"} - {*OF_LINES},
            process._REFUSED,
        ),
        # The image decides about framework_version and transformers_version.
        ("local", {*UNUSED, "py_version", *HUGGING_FACE_VERSIONS[1:]} - {*OF_LINES}, docker._REFUSED),
        # bake_requirements has no effect on processes, and is refused in containers.
        (
            "ssh",
            {*UNUSED, *ssh._UNUSED["docker"], *HUGGING_FACE_VERSIONS[1:], "bake_requirements"}
            - {*ssh._USED, *OF_LINES},
            ssh._REFUSED,
        ),
        ("slurm", {*UNUSED, *slurm._UNUSED, *HUGGING_FACE_VERSIONS} - set(slurm._USED), slurm._REFUSED),
        (
            "k8s",
            {*UNUSED, *kubernetes._UNUSED, *HUGGING_FACE_VERSIONS} - set(kubernetes._USED),
            kubernetes._REFUSED,
        ),
        ("ml", (*sagemaker._UNUSED, *HUGGING_FACE_VERSIONS), sagemaker._REFUSED),
    ],
)
def test_the_backends_of_a_row_are_those_whose_review_accepts_the_option(backend, unused, refused):
    refused_everywhere = set() if backend == "ml" else {*REFUSED, "checkpoint_local_path"}
    documented = {row.name for row in option_rows() if backend not in row.backends}
    assert documented == {*unused, *refused, *refused_everywhere}


def test_type_checkers_refuse_wrong_names_and_types(tmp_path):
    script = tmp_path / "submit.py"
    script.write_text(
        "from herringbone import Estimator, MXNet, PyTorch, TensorFlow\n"
        "PyTorch('train.py', instance_type='local', max_run='1h', tags={'team': 'a'})\n"
        "TensorFlow(entry_point='train.py', instance_type='local', hyperparameters={'lr': 1})\n"
        "Estimator('train.py', max_runs=3)\n"
        "MXNet('train.py', instance_cuont=3)\n"
        "TensorFlow(entry_point='train.py', volume_size='30')\n"
    )
    api = pytest.importorskip("mypy.api")
    # With the repository's settings, and so from the cache that `scripts/check` fills.
    output, _, code = api.run([str(script)])
    lines = [line.partition("submit.py:")[2].partition(":")[0] for line in output.splitlines() if "error:" in line]
    assert (lines, code) == (["4", "5", "6"], 1), output
