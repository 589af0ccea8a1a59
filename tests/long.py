"""Parameters of which `make test-long` alone takes some."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest


def parameters(names: Iterable[str], long: Container[str]) -> list[object]:
    """Return a test's parameters, and leave those in `long` to `make test-long`."""
    return [
        pytest.param(name, marks=pytest.mark.long if name in long else ())
        for name in names
    ]
