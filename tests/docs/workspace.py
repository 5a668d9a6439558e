"""Run the snippets of one page in a folder of their own, as a reader would."""

import ast
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import yaml
from tests.docs.preludes import HERE, RANK, RANK_WORDS
from tests.docs.snippets import ROOT, Snippet, commands

import herringbone
from herringbone import Estimator
from herringbone.api.job import attach
from herringbone.backends.ssh.machines.inventory import read_inventory
from herringbone.cli.__main__ import GROUP, main
from herringbone.cli.train.tune import TuneGroup
from herringbone_contract.errors import EngineError, ImageError, UnsupportedError

# What these verbs need on this machine is a job alone. All others are parsed only.
SAFE_VERBS = ("run", "plan", "tune", "ls", "logs", "stop", "describe", "download", "metrics", "rm")
SHELL = ("mkdir", "cp", "du")
FRAMEWORKS = re.compile(r"tensorflow|\bkeras\b|\btf\.|\bsdp\.|\bmx\.|\bhvd\.|gluon")
ESTIMATOR = re.compile(r"\b(Estimator|PyTorch|TensorFlow|MXNet)\(")
LIBRARIES = {"sdp": "data_parallel", "smp": "model_parallel", "hvd": "horovod"}
IN_A_RANK = "in a rank"
# The job that stands for NAME, unless the page has run one of its own.
EARLIER = "digits-1"
NAMES = {"OTHER": "digits-2"}


class Workspace:
    """The folder of a page, with the files that the page takes for granted.

    `status` has one word for each snippet: executed, planned, parsed or marked. `files` are those that the page wrote.
    """

    def __init__(self, folder: Path, page: str, base: Path) -> None:
        self.page = page
        self.folder = folder / "project"
        shutil.copytree(base, self.folder)
        self.status: dict[Snippet, str] = {}
        self.files: dict[str, Snippet] = {}
        self._used = ""
        self._job = EARLIER
        self._names = {name: getattr(herringbone, name) for name in ("Estimator", "PyTorch", "TensorFlow", "MXNet")}
        self._names |= {"InstanceGroup": herringbone.InstanceGroup, "TrainingInput": herringbone.TrainingInput}
        self._began = False

    def run(self, snippet: Snippet) -> None:
        os.chdir(self.folder)
        if snippet.reason is not None:
            self.status[snippet] = "marked"
            self._parse_marked(snippet)
        elif snippet.file is not None:
            path = self.folder / snippet.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(snippet.text, encoding="utf-8")
            self.files[snippet.file] = snippet
            self.status[snippet] = "written"
            if snippet.language == "python":
                compile(snippet.text, snippet.place, "exec")
                if "/" not in snippet.file:
                    self._python(snippet)
            elif "hosts" in yaml.safe_load(snippet.text):
                read_inventory(path)
                self.status[snippet] = "parsed"
        else:
            {"python": self._python, "console": self._console, "yaml": self._yaml}[snippet.language](snippet)

    def finish(self) -> list[Snippet]:
        """Plan the job files that the page does not run, and return the other files that nothing on the page uses."""
        grown = True
        waiting = {name: snippet for name, snippet in self.files.items() if self.status[snippet] == "written"}
        while grown:
            grown = False
            for name, snippet in list(waiting.items()):
                if re.search(rf"\b{re.escape(Path(name).stem)}\b", self._used):
                    self.status[snippet] = "executed"
                    self._used += snippet.text
                    del waiting[name]
                    grown = True
        for name in [name for name in waiting if name.endswith(".yaml")]:
            self._plan(self.folder / name)
            self.status[waiting.pop(name)] = "planned"
        return list(waiting.values())

    def _parse_marked(self, snippet: Snippet) -> None:
        if snippet.language == "console":
            for parts in commands(snippet):
                for words in parts:
                    if words and Path(words[0]).name == "herringbone":
                        parse(words[1:])

    def _yaml(self, snippet: Snippet) -> None:
        path = self.folder / "snippet.yaml"
        path.write_text(snippet.text, encoding="utf-8")
        self._plan(path)
        self.status[snippet] = "planned"

    def _plan(self, path: Path) -> None:
        """Plan the job, or the search, that a file describes."""
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        is_search = "tuning" in settings
        if is_search:
            script = self.folder / settings.get("source_dir", ".") / settings["entry_point"]
            found = {definition["Name"] for definition in settings.get("metric_definitions", [])}
            wanted = settings["tuning"]["objective_metric_name"]
            assert wanted in found or "log_metrics" in script.read_text(encoding="utf-8"), (
                f"{path}: {wanted}: not found"
            )
        self._main([*(["tune"] if is_search else []), "plan", str(path)])

    # Python

    def _python(self, snippet: Snippet) -> None:
        code = compile(snippet.text, snippet.place, "exec")
        if ESTIMATOR.search(snippet.text):
            self.status[snippet] = "executed"
            with self._fitting(snippet):
                exec(code, self._names)  # noqa: S102 - our own pages
            self._used += snippet.text
        elif FRAMEWORKS.search(snippet.text):
            # These frameworks have Pythons of their own, which tests/tensorflow/setup and tests/mxnet/setup make.
            check_names(snippet)
            self.status[snippet] = "parsed"
        elif self.page in RANK and (self.page not in HERE or any(mark in snippet.text for mark in RANK_WORDS)):
            self.status[snippet] = IN_A_RANK
        else:
            if not self._began:
                exec(HERE.get(self.page, ""), self._names)  # noqa: S102
                self._began = True
            exec(code, self._names)  # noqa: S102 - our own pages
            self.status[snippet] = "executed"

    @contextlib.contextmanager
    def _fitting(self, snippet: Snippet):
        """Have `fit` run jobs of PyTorch on processes of this machine, and plan all others up to their request."""
        real = Estimator.fit

        def fit(estimator, inputs=None, **options):
            try:
                plan = estimator.plan(inputs)
            except (EngineError, ImageError, UnsupportedError) as error:
                # Whether this machine has an engine, an image or the framework says nothing about the page.
                if isinstance(error, UnsupportedError) and "which has none" not in str(error):
                    raise
                plan = None
            if plan is not None and plan.backend == "local_process" and plan.estimator == "PyTorch":
                job = real(estimator, inputs, **options)
                job.wait()
                assert job.status == "Completed"
                self._job = job.name
                return job
            self.status[snippet] = "planned"
            return attach(EARLIER)

        Estimator.fit = fit
        try:
            yield
        finally:
            Estimator.fit = real

    # The shell

    def _console(self, snippet: Snippet) -> None:
        executed = [self._command(words, snippet) for parts in commands(snippet) for words in parts if words]
        self.status[snippet] = "executed" if any(executed) else "parsed"

    def _command(self, words: list[str], snippet: Snippet) -> bool:
        """Run one command, and return True; parse it where it needs more than this machine, and return False."""
        if words[0] == "herringbone":
            return self._herringbone(words[1:])
        if words[0] == "cd":
            self.folder = self.folder / words[1]
            os.chdir(self.folder)
        elif words[0] in SHELL or (words[0] == "python" and snippet.page.startswith(("docs/start", "docs/do"))):
            program = [sys.executable] if words[0] == "python" else words[:1]
            done = subprocess.run([*program, *map(os.path.expanduser, words[1:])], capture_output=True, text=True)
            assert done.returncode == 0, f"{snippet.place}: {words}: {done.stderr}"
            self._used += " ".join(words)
        else:
            script = words[1] if words[0] == "python" else words[0]
            assert (ROOT / script).is_file(), f"{snippet.place}: {words[0]}: say why the block is not run, or run it"
            return False
        return True

    def _herringbone(self, words: list[str]) -> bool:
        parse(words)
        verb, *rest = [{"NAME": self._job, **NAMES}.get(word, word) for word in words]
        if verb not in SAFE_VERBS:
            return False
        if verb == "tune" and Path(rest[-1]).suffix == ".yaml" and not (self.folder / rest[-1]).is_file():
            return False
        if verb == "tune":
            self._used += " ".join(path.stem + path.read_text() for path in map(Path, rest) if path.is_file())
        if verb in ("run", "plan") and not {"--like", "--resume"} & {*rest}:
            path = self.folder / rest[0]
            if not path.is_file() or not runs_here(path, rest):
                return False
            self._used += path.read_text(encoding="utf-8") + path.stem
        if verb == "download":
            shutil.rmtree(self.folder / (rest[-1] if len(rest) > 1 else f"{rest[0]}-model"), ignore_errors=True)
        if verb == "rm" and "--dry-run" not in rest:
            rest.append("--yes")
        self._main([verb, *rest])
        if verb == "rm":
            for name in (word for word in rest if word in (EARLIER, *NAMES.values())):
                run_earlier(name)
        return True

    def _main(self, words: list[str]) -> None:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(words)
        os.chdir(self.folder)
        assert code == 0, f"herringbone {' '.join(words)}: exit code {code}\n{output.getvalue()}"
        if words[0] == "run":
            self._job = re.findall(r"job (\S+): Completed", output.getvalue())[-1]


def check_names(snippet: Snippet) -> None:
    """Check that our libraries have the names which a fragment uses: `sdp.broadcast_variables`."""
    for alias, name in re.findall(r"\b(sdp|smp|hvd)\.(\w+)", snippet.text):
        library = "mxnet" if "mxnet" in snippet.page else f"tensorflow/{LIBRARIES[alias]}"
        tree = ast.parse((ROOT / "parallel" / "herringbone_parallel" / library / "api.py").read_text(encoding="utf-8"))
        lists = [
            node
            for node in tree.body
            if isinstance(node, (ast.Assign, ast.AugAssign)) and "__all__" in ast.unparse(node)
        ]
        # Names that are taken over from another list (`*facts.__all__`) are none of a page.
        exported = {item.value for node in lists for item in node.value.elts if isinstance(item, ast.Constant)}
        assert name in exported, f"{snippet.place}: {alias}.{name}: {library} has no such name"


def run_earlier(name: str) -> None:
    """Run a job for pages that begin with one; its script is in every project."""
    metrics = 'metric_definitions=[{Name: loss, Regex: "loss=([0-9.]+)"}]'
    assert main(["run", "train.py", "--job-name", name, "--option", metrics, "--quiet"]) == 0


def runs_here(path: Path, words: list[str]) -> bool:
    """Return whether a job needs only processes of this machine and PyTorch."""
    if "--instance-type" in words:
        return words[words.index("--instance-type") + 1] == "local_process"
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path.suffix == ".yaml" else {}
    return settings.get("instance_type", "local_process") == "local_process"


def parse(words: list[str]) -> None:
    """Parse a command as `herringbone` does, and do not run it."""
    command, rest = GROUP, words[: words.index("--")] if "--" in words else list(words)
    while isinstance(command, click.Group):
        if command.invoke_without_command and rest[0].startswith("-"):
            # `serve` is a verb of its own, and a group of others.
            break
        # `tune job.yaml` is short for `tune run job.yaml`.
        verb = "run" if isinstance(command, TuneGroup) and rest[0] not in command.commands else rest.pop(0)
        command = command.get_command(click.Context(command), verb)
        assert command is not None, f"herringbone {verb}: there is no such verb"
    command.make_context("herringbone", rest)
