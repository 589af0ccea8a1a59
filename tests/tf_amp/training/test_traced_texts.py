"""What rules that are applied while tracing make of a step is what was reviewed."""

from __future__ import annotations

import pytest

from tests.traced_texts import STEPS, golden_path, text_of


@pytest.mark.parametrize("rule", STEPS)
def test_a_step_is_traced_as_it_was_reviewed(rule: str) -> None:
    """After a change that is meant: `python -m tests.traced_texts`."""
    assert text_of(rule) == golden_path(rule).read_text()
