"""Tests depend neither on the settings of whoever runs them nor on other tests."""

from __future__ import annotations

import pytest
from absl import logging

from tests.processes import run_python
from tf_amp.config.amp_config import OPT_LEVEL, SWITCH
from tf_amp.rewriting import host


def test_the_settings_of_whoever_runs_the_tests_are_unset() -> None:
    program = """
        import os
        import tests.conftest
        print(*sorted(n for n in os.environ if "TF_AMP" in n or "AUTO_MIXED" in n))
    """
    done = run_python(program, env={OPT_LEVEL: "O0", SWITCH: "1"})
    assert done.lines() == ["TF_AMP_CACHE TF_AMP_TUNE"]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_plans_and_what_is_told_once_are_forgotten(
    turn: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not host.current().plans
    host.current().plans.append(turn)
    assert host.current().is_news("said once")
    logging.log_first_n(logging.WARNING, "only once", 1)
    assert "only once" in caplog.text
