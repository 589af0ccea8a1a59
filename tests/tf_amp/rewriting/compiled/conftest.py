"""What several tests of functions compiled by XLA start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tf_amp


@pytest.fixture
def everything_eligible() -> Iterator[None]:
    """Rewrite all that may be in 16 bits, in functions that XLA compiles."""
    tf_amp.enable("bfloat16", opt_level="O2", strict=True, loss_scale="none")
    yield
    tf_amp.disable()
