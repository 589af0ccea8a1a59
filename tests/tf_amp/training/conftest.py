"""What several tests of training start from."""

import pytest
from absl import logging

from tf_amp.message_codes import Code
from tf_amp.training import optimizers


@pytest.fixture
def logged(monkeypatch):
    """Collect what is said at most so many times."""
    lines = []

    def log_first_n(level, message, count, *args):
        lines.append(message % args)

    def warn_once(code, text, *values):
        lines.append(code.ends(text) % values)

    monkeypatch.setattr(logging, "log_first_n", log_first_n)
    monkeypatch.setattr(Code, "warn_once", warn_once)
    monkeypatch.setattr(optimizers, "_applied", [])
    return lines
