"""A plug-in of pytest: writes as it happens which tests begin, fail and end.

So what failed is known even where the process is killed or ends by itself.
"""

from __future__ import annotations

import os
import pathlib

import pytest

REPORT = "FAULTS_REPORT"


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Tell which file cannot be collected."""
    if report.failed:
        _tell("not collected", report.nodeid)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Tell that a test begins."""
    _tell("began", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell that a part of a test failed."""
    if report.failed:
        _tell("failed", report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Tell that a test has ended, whatever came of it."""
    _tell("ended", nodeid)


def _tell(what: str, nodeid: str) -> None:
    with pathlib.Path(os.environ[REPORT]).open("a") as report:
        print(what, nodeid, sep="\t", file=report)


def failed_in(report: str) -> list[str] | None:
    """Return the tests that failed, or began and did not end.

    None where no test began, or a file of tests could not be collected.
    """
    lines = [line.split("\t", 1) for line in report.splitlines()]
    named = {
        what: [nodeid for each, nodeid in lines if each == what]
        for what in ("not collected", "began", "failed", "ended")
    }
    if named["not collected"] or not named["began"]:
        return None
    ended = {*named["ended"]}
    unended = [nodeid for nodeid in named["began"] if nodeid not in ended]
    return list(dict.fromkeys([*named["failed"], *unended]))
