"""Operations that hand on what they read, as it is."""

from __future__ import annotations

_EACH = "IdentityN"
_FIRST = ("Identity", "RefSwitch", "Snapshot", "Switch", "_SwitchN")


def passes_on(op: str) -> bool:
    """Tell whether the outputs of an op are inputs of it, unchanged."""
    return op == _EACH or op in _FIRST


def input_behind(op: str, output: int) -> int:
    """Return which input an output is, of an op that passes on."""
    return output if op == _EACH else 0
