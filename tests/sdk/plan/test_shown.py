"""Plans, estimators and jobs as people read them, on a terminal and in a notebook."""

import msgspec

from herringbone import Estimator, PyTorch
from herringbone.plan.code_size import CodeSize
from herringbone.plan.shown import plan_rows
from herringbone.views.notebook.progress import job_html

SPLIT_IN_TWO = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}},
    "mpi": {"enabled": True, "processes_per_host": 2},
}


def made(tmp_path, monkeypatch, inputs=None, job_name=None, **options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("x = 1\n")
    return PyTorch("train.py", instance_type="local_process", **options).plan(inputs, job_name)


def test_a_plan_says_name_image_code_folders_and_the_users_settings(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    plan = made(
        tmp_path,
        monkeypatch,
        "data",
        distribution=SPLIT_IN_TWO,
        hyperparameters={"epochs": 3},
        environment={"A_TOKEN": "hunter2"},
        checkpoint_s3_uri="file://kept",
        output_path="out",
        max_run=60,
        volume_size=100,
    )
    assert plan_rows(plan.to_dict()) == [
        ("name", "train-... (made at fit)"),
        ("runs on", "local_process"),
        ("launcher", "mpi"),
        ("host algo-1", "2 ranks"),
        ("image", "none: ranks run in this machine's Python"),
        ("script", f"train.py in {tmp_path}"),
        ("code", "1 file, 6 bytes"),
        ("channel training", f"{tmp_path}/data"),
        ("checkpoints", "file://kept"),
        ("output", "out/NAME/output"),
        ("hyperparameter", "epochs = 3"),
        ("command line", "train.py --epochs 3 --mp_parameters partitions=2"),
        ("environment", "A_TOKEN=******"),
        ("limit", "60 s"),
        ("unused", "not used by local_process: volume_size"),
    ]
    internal = [
        text.partition(" ")[0] for label, text in plan_rows(plan.to_dict(), verbose=True) if label == "internal"
    ]
    assert {"mp_parameters", "sagemaker_program", "sagemaker_mpi_enabled"} < set(internal)
    assert "sagemaker_program" in plan.text(verbose=True)


def test_a_given_name_is_shown_and_folders_of_the_job_are_named(tmp_path, monkeypatch):
    rows = dict(plan_rows(made(tmp_path, monkeypatch, job_name="digits-1").to_dict()))
    assert rows["name"] == "digits-1"
    assert rows["checkpoints"] == "the job's folder; checkpoint_s3_uri keeps them for other jobs"
    assert rows["output"] == "the job's folder"
    assert rows["host algo-1"] == "1 rank"


def test_a_variable_that_only_compares_a_prediction_is_internal(tmp_path, monkeypatch):
    compared = made(tmp_path, monkeypatch, environment={"HERRINGBONE_COMPARE": "on"})
    assert "HERRINGBONE_COMPARE" not in compared.text()
    assert "HERRINGBONE_COMPARE=on" in compared.text(verbose=True)
    assert "=off" in made(tmp_path, monkeypatch, environment={"HERRINGBONE_COMPARE": "off"}).text()


def test_notes_about_the_code_are_in_the_plan_and_before_the_job(tmp_path, monkeypatch):
    plan = made(tmp_path, monkeypatch, job_name="digits-1", role="me")
    plan = msgspec.structs.replace(plan, code=CodeSize(files=1, bytes=5, environments=(".venv",)))
    note = "left out of the code, as Python environments: .venv/; name packages in requirements.txt"
    assert plan.notes == (note, "not used by local_process: role")
    assert f"note:              {note}" in str(plan).splitlines()


def test_a_notebook_shows_tables_with_escaped_texts_and_without_secrets(tmp_path, monkeypatch):
    shown = {"hyperparameters": {"note": "<b>"}, "environment": {"A_TOKEN": "hunter2"}}
    html = made(tmp_path, monkeypatch, **shown)._repr_html_()
    assert "note = &quot;&lt;b&gt;&quot;" in html
    estimator = PyTorch("train.py", instance_type="local_process", git_config={"repo": "r", "branch": "b"}, **shown)
    assert "<b>PyTorch</b>" in estimator._repr_html_()
    assert "none yet" in estimator._repr_html_()
    for text in (html, estimator._repr_html_(), repr(estimator)):
        assert "hunter2" not in text
    assert repr(Estimator("a.py", instance_type="local", hyperparameters={"lr": 1})) == (
        "Estimator('a.py', instance_type='local', hyperparameters={'lr': 1})"
    )


def test_a_notebook_shows_a_job_by_its_description():
    html = job_html(
        {
            "TrainingJobName": "digits-1",
            "TrainingJobStatus": "Failed",
            "SecondaryStatus": "Failed",
            "FailureReason": "AlgorithmError: a < b",
            "HyperParameters": {"lr": "0.1", "sagemaker_program": '"train.py"'},
        }
    )
    for text in ("TrainingJob digits-1", "Failed (Failed)", "a &lt; b", "lr = 0.1", "herringbone logs digits-1"):
        assert text in html
    assert "sagemaker_program" not in html
