"""What several tests of the database start from."""

from __future__ import annotations

import pathlib

import pytest

from grappler_pass.costs.database.price_database import costs_path


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return where the database of a cache folder is."""
    return costs_path(tmp_path)
