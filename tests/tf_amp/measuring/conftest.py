"""What several tests of measuring start from."""

from __future__ import annotations

import pytest

from tests.tf_amp.measuring.given_steps import Steps
from tf_amp.measuring.steps import compared_calls


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Steps that begin in this process."""
    steps = Steps()
    monkeypatch.setattr(compared_calls, "begin", steps.begin)
    return steps
