"""A few of the numbers that a step computes, to compare with those of float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_MOST_VALUES = 256
_FLOATS = ("float", "bfloat")


def sampled_values(computed: Any) -> list[float]:
    """Return numbers spread evenly over each tensor of a structure, at most 256.

    What is not of a floating type, as counts and names, is left out.
    """
    leaves = [each for each in _leaves(computed) if _is_floating(each)][:_MOST_VALUES]
    found: list[float] = []
    for leaf in leaves:
        flat = np.asarray(leaf).astype(np.float64).ravel()
        count = min(_MOST_VALUES // len(leaves), flat.size)
        if count:
            places = np.linspace(0, flat.size - 1, count, dtype=int)
            found.extend(flat[places].tolist())
    return found


def _leaves(structure: Any) -> Iterator[Any]:
    if isinstance(structure, Mapping):
        structure = [structure[name] for name in sorted(structure)]
    if not isinstance(structure, list | tuple):
        yield structure
        return
    for each in structure:
        yield from _leaves(each)


def _is_floating(leaf: Any) -> bool:
    if isinstance(leaf, float):
        return True
    dtype = getattr(leaf, "dtype", None)
    name = str(getattr(dtype, "name", dtype))
    return name.startswith(_FLOATS) and hasattr(leaf, "__array__")
