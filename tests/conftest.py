"""What holds for every test: nothing is measured, and the user's cache is not read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.processes import SETTINGS

os.environ.update(SETTINGS)


@pytest.fixture
def disabled_afterwards() -> Iterator[None]:
    """Leave nothing of a test's mixed precision to the next one."""
    yield
    import tf_amp

    tf_amp.disable()
