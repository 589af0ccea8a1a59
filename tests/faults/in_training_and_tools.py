"""Faults in training (`tf_amp`, `keras_callbacks`) and in tools."""

from __future__ import annotations

from tests.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
