"""The report: outcomes of programs, their figures, and the table."""

from __future__ import annotations

import json

from benchmarks.gpu.report import Outcome, Report, Status, flat, judge, result_of


def test_the_last_line_that_is_json_is_the_result() -> None:
    assert result_of('{"a": 1}\n{"b": 2}\nwarning: {not json}\n{broken\n') == {"b": 2}
    assert result_of("nothing\n[1]\n") is None


def test_the_outcome_of_a_program() -> None:
    assert judge("sums", 0, 2.0, 'x\n{"ratio": 1.5}\n') == Outcome("sums", Status.OK, 2.0, {"ratio": 1.5})
    assert judge("sums", 0, 2.0, '{"skipped": "no driver"}\n') == Outcome(
        "sums", Status.SKIPPED, 2.0, reason="no driver"
    )
    assert judge("tests", 0, 2.0, '{"passed": 4, "skipped": 1}').status is Status.OK
    failed = judge("sums", 3, 2.0, '{"failed": ["a"]}\n\nlast\nvery last\n', lines=2)
    assert failed == Outcome("sums", Status.FAILED, 2.0, {"failed": ["a"]}, "exit code 3", ["last", "very last"])
    silent = judge("sums", 0, 2.0, "")
    assert (silent.status, silent.reason) == (Status.FAILED, "it printed no result")


def test_figures_of_a_nested_result() -> None:
    nested = {"batch": 8, "plain": {"mfu": None}, "sums": [{"mb": 1.0}], "names": ["a", "b"]}
    assert list(flat(nested)) == [("batch", 8), ("plain mfu", None), ("sums 0 mb", 1.0), ("names", ["a", "b"])]


def test_the_report() -> None:
    report = Report({"devices": ["NVIDIA H200, 150.1 GB"], "driver": None}, dry=False)
    assert not report.is_good
    report.add(Outcome("sums", Status.OK, 12.04, {"ddp": {"ratio": 1.23456}}))
    assert report.is_good
    report.add(Outcome("division", Status.SKIPPED, 0.0, reason="no | driver"))
    assert report.is_good
    report.add(Outcome("memory", Status.OUT_OF_TIME, 40.0, reason="limit 40 s", last_lines=["step 3"]))
    assert not report.is_good
    assert json.loads(report.json()) == {
        "machine": {"devices": ["NVIDIA H200, 150.1 GB"], "driver": None},
        "dry": False,
        "good": False,
        "parts": [
            {"part": "sums", "status": "ok", "seconds": 12.0, "result": {"ddp": {"ratio": 1.23456}}},
            {"part": "division", "status": "skipped", "seconds": 0.0, "reason": "no | driver"},
            {
                "part": "memory",
                "status": "ran out of time",
                "seconds": 40.0,
                "reason": "limit 40 s",
                "last_lines": ["step 3"],
            },
        ],
    }
    assert report.markdown() == "\n".join(
        [
            "# On CUDA devices",
            "",
            "- devices: NVIDIA H200, 150.1 GB",
            "- driver: -",
            "",
            "| part | end | seconds | reason |",
            "|---|---|---|---|",
            "| sums | ok | 12.0 |  |",
            "| division | skipped | 0.0 | no \\| driver |",
            "| memory | ran out of time | 40.0 | limit 40 s |",
            "",
            "| part | figure | value |",
            "|---|---|---|",
            "| sums | ddp ratio | 1.235 |",
            "",
            "## The last lines of memory",
            "",
            "```text",
            "step 3",
            "```",
            "",
        ]
    )


def test_a_dry_run_says_so() -> None:
    assert Report({}, dry=True).markdown().startswith("# A dry run on the CPU")
