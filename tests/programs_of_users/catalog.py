"""All of the programs, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.programs_of_users import (
    attention,
    decisions,
    densities,
    derivatives,
    graphs_of_tensorflow,
    images,
    indices,
    loops,
    losses,
    normalizations,
    training,
)
from tests.programs_of_users.building import UserProgram

_MODULES = (
    losses,
    normalizations,
    attention,
    indices,
    loops,
    derivatives,
    densities,
    images,
    training,
    decisions,
    graphs_of_tensorflow,
)
BY_NAME: Mapping[str, Callable[[], UserProgram]] = {
    make.__name__: make for module in _MODULES for make in module.PROGRAMS
}
