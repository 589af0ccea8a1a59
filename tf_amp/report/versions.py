"""Versions of what is installed, which stand beside what was measured with them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib import metadata

import tf_amp


def versions_of(packages: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the version of tf-amp, and of those packages that are installed."""
    versions = [("tf-amp", tf_amp.__version__)]
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append((name, metadata.version(name)))
    return tuple(versions)
