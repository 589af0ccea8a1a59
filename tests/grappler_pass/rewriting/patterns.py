"""Small programs, each with what is in 16 bits of it after the pass."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf

from grappler_pass import annotations
from tests.equivalence import assert_equivalent
from tests.hand_casts import is_kernel
from tests.programs import Program
from tests.sketch import Sketch, sketch
from tests.soundness import (
    FLOAT32,
    LOW_DTYPES,
    casts_down,
    casts_up,
    colors,
    ops_with_dtype,
)

CONTROL_FLOWS = {"v1": False, "v2": True}


def rewritten(
    *,
    low: Mapping[str, int] | None = None,
    least: Mapping[str, int] | None = None,
    colored: Mapping[str, str] | None = None,
    down: int | None = None,
    up: int | None = None,
    control_flows: Iterable[str] = ("v1",),
    levels: Iterable[str] = ("O2",),
    dtypes: Iterable[str] = tuple(sorted(LOW_DTYPES)),
    runs: Sequence[tuple[str, str, str]] = (),
    given: Mapping[str, tuple[Any, ...]] | None = None,
    capture: bool = False,
    traced: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a function that builds a program in a sketch.

    The rewritten program must compute the same. The function returns what is fetched,
    or a program; if it yields that, it gets the rewritten graph back, to look at.

    Args:
      low: how many nodes of an op are in 16 bits, at O2.
      least: how many of them are so at least.
      colored: nodes, with the color of each.
      down: how many casts there are to 16 bits.
      up: how many back.
      control_flows: "v1", "v2".
      levels: of optimization.
      dtypes: that it is tried with.
      runs: types, control flows and levels together, in place of all of each.
      given: what else the function gets, by what that is called.
      capture: whether the graph is rewritten as TensorFlow leaves it.
      traced: whether the program is a function, of which all products go low at O2 but
        those that are marked; it is made outside of a graph, and its builder gets no
        sketch.
    """

    def decorate(build: Callable[..., Any]) -> Callable[..., None]:
        def test(case: tuple[str, str, str, Any]) -> None:
            low_dtype, control_flow, level, *values = case
            flow = CONTROL_FLOWS[control_flow]
            place = contextlib.nullcontext() if traced else sketch(v2_control_flow=flow)
            with place as s:
                built = build(*values) if traced else build(s, *values)
                looks = hasattr(built, "send")
                fetched = next(built) if looks else built
                is_program = isinstance(fetched, Program)
                program = fetched if is_program else _program(s, fetched)
            rewrite = assert_equivalent(program, low_dtype, level, capture=capture)
            after = rewrite.graph_def
            if level == "O2":
                found = ops_with_dtype(after, low_dtype)
                assert {op: found[op] for op in low or {}} == (low or {}), found
                assert all(found[op] >= n for op, n in (least or {}).items()), found
                products = [n for n in after.node if traced and is_kernel(n)]
                high = [n for n in products if n.attr["T"].type == FLOAT32]
                assert not [n.name for n in high if annotations.FLOAT32 not in n.attr]
            for names, expected in (colored or {}).items():
                assert colors(after, names) == expected, names
            counts = len(casts_down(after)), len(casts_up(after))
            assert down in (None, counts[0]) and up in (None, counts[1]), counts
            if looks:
                with pytest.raises(StopIteration):
                    built.send((after, low_dtype))

        every = runs or [*itertools.product(dtypes, control_flows, levels)]
        # Named by what differs, and by the type anyway.
        columns = zip(*every, strict=True)
        shown = [column[0] in LOW_DTYPES or len({*column}) > 1 for column in columns]
        cases = {}
        for run, name in itertools.product(every, given or {"": ()}):
            parts = (*itertools.compress(run, shown), name)
            cases["-".join(filter(None, parts))] = (*run, *(given or {}).get(name, ()))
        test.__name__, test.__doc__ = build.__name__, build.__doc__
        return pytest.mark.parametrize("case", cases.values(), ids=cases)(test)

    return decorate


def _program(s: Sketch, fetched: Any) -> Program:
    tensors = fetched if isinstance(fetched, list | tuple) else [fetched]
    return s.program(*map(tf.identity, tensors))


def gradients_of(loss: tf.Tensor) -> list[tf.Tensor]:
    """Return the gradients by all variables that have one."""
    found = tf.gradients(loss, tf.compat.v1.global_variables())
    return [tf.identity(tf.convert_to_tensor(g)) for g in found if g is not None]
