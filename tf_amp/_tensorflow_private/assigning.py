"""TensorFlow's private hooks where variables are assigned to.

As in `_tensorflow_private`: where one is gone, one warning says what is lost.
"""

from __future__ import annotations

from tf_amp._tensorflow_private import Hook

_WITHOUT = "what a program writes of gradients that overflow is written"
_RESOURCE = "tensorflow.python.ops.gen_resource_variable_ops"
_STATE = "tensorflow.python.ops.gen_state_ops"


def _hooks(*places: tuple[str, str]) -> tuple[Hook, ...]:
    return tuple(Hook(module, "", function, _WITHOUT) for module, function in places)


_ARRAY = "tensorflow.python.ops.gen_array_ops"
# By what they do: write a whole variable, rows, parts or a slice of it (the larger or
# the smaller value, perhaps), add to it, or multiply it.
WRITES = _hooks((_RESOURCE, "assign_variable_op"), (_STATE, "assign"))
ROW_WRITES = _hooks(
    (_RESOURCE, "resource_scatter_update"),
    (_RESOURCE, "resource_scatter_max"),
    (_RESOURCE, "resource_scatter_min"),
    (_STATE, "scatter_update"),
    (_STATE, "scatter_max"),
    (_STATE, "scatter_min"),
)
PART_WRITES = _hooks(
    (_STATE, "resource_scatter_nd_update"),
    (_STATE, "resource_scatter_nd_max"),
    (_STATE, "resource_scatter_nd_min"),
    (_STATE, "scatter_nd_update"),
    (_STATE, "scatter_nd_max"),
    (_STATE, "scatter_nd_min"),
)
SLICE_WRITES = _hooks(
    (_ARRAY, "resource_strided_slice_assign"), (_ARRAY, "strided_slice_assign")
)
CHANGES = _hooks(
    (_RESOURCE, "assign_add_variable_op"),
    (_RESOURCE, "assign_sub_variable_op"),
    (_RESOURCE, "resource_scatter_add"),
    (_RESOURCE, "resource_scatter_sub"),
    (_STATE, "assign_add"),
    (_STATE, "assign_sub"),
    (_STATE, "scatter_add"),
    (_STATE, "scatter_sub"),
    (_STATE, "resource_scatter_nd_add"),
    (_STATE, "resource_scatter_nd_sub"),
    (_STATE, "scatter_nd_add"),
    (_STATE, "scatter_nd_sub"),
)
FACTORS = _hooks(
    (_RESOURCE, "resource_scatter_mul"),
    (_RESOURCE, "resource_scatter_div"),
    (_STATE, "scatter_mul"),
    (_STATE, "scatter_div"),
)
