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


# By what they do: write a whole variable, rows of it or parts of it, or add to it.
WRITES = _hooks((_RESOURCE, "assign_variable_op"), (_STATE, "assign"))
ROW_WRITES = _hooks((_RESOURCE, "resource_scatter_update"), (_STATE, "scatter_update"))
PART_WRITES = _hooks(
    (_STATE, "resource_scatter_nd_update"), (_STATE, "scatter_nd_update")
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
