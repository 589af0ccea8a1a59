"""TensorFlow's private hooks where variables are assigned to."""

from __future__ import annotations

from tf_amp._tensorflow_private import Hook

_WITHOUT = "what a program writes of gradients that overflow is written"
_ARRAY = "tensorflow.python.ops.gen_array_ops"
_RESOURCE = "tensorflow.python.ops.gen_resource_variable_ops"
_STATE = "tensorflow.python.ops.gen_state_ops"


def _hooks(module: str, *functions: str) -> tuple[Hook, ...]:
    return tuple(Hook(f"{module}:{function}", _WITHOUT) for function in functions)


def _scatters(*kinds: str) -> tuple[Hook, ...]:
    """Return what writes rows of a variable, with a handle or by reference."""
    return (
        *_hooks(_RESOURCE, *(f"resource_scatter_{kind}" for kind in kinds)),
        *_hooks(_STATE, *(f"scatter_{kind}" for kind in kinds)),
    )


def _scatters_nd(*kinds: str) -> tuple[Hook, ...]:
    """Return what writes parts of a variable, with a handle or by reference."""
    ways = ("resource_scatter_nd", "scatter_nd")
    return _hooks(_STATE, *(f"{way}_{kind}" for way in ways for kind in kinds))


# By what they do: write a whole variable, rows, parts or a slice of it (the larger or
# the smaller value, perhaps), add to it, or multiply it.
WRITES = _hooks(_RESOURCE, "assign_variable_op") + _hooks(_STATE, "assign")
ROW_WRITES = _scatters("update", "max", "min")
PART_WRITES = _scatters_nd("update", "max", "min")
SLICE_WRITES = _hooks(_ARRAY, "resource_strided_slice_assign", "strided_slice_assign")
CHANGES = (
    *_hooks(_RESOURCE, "assign_add_variable_op", "assign_sub_variable_op"),
    *_hooks(_STATE, "assign_add", "assign_sub"),
    *_scatters("add", "sub"),
    *_scatters_nd("add", "sub"),
)
FACTORS = _scatters("mul", "div")
