"""What several tests of measuring start from."""

from __future__ import annotations

import pytest

from tests.tf_amp.compare.given_steps import Steps
from tf_amp.compare import call_sites


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Steps that begin in this process."""
    steps = Steps()
    monkeypatch.setattr(
        call_sites.Entry, "begin", lambda entry, *args: steps.begin(*args)
    )
    return steps
