"""What is written on the nodes of a graph: the attributes, and a name scope.

Each begins with the same letters, so that whoever stores a graph finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

# Which settings hold for an operation, and where it was traced.
STAMP = "_tf_amp"
# The operation stays float32; the value says who asked for it, in words. What begins
# with `OWN` is our own arithmetic, which no user has excluded.
FLOAT32 = "_tf_amp_float32"
OWN = "tf-amp: "
# What the operation is a gradient of.
FORWARD = "_tf_amp_forward"
# Gradients leave it unscaled.
BARRIER = "_tf_amp_barrier"
# On what reads the state of a loss scale.
LOSS_SCALE = "_tf_amp_loss_scale"
# On what takes the scale out of what was read, and on what divides it: which of the
# outputs that is, where all that it scales is unscaled in the same graph, else -1.
SCALE = "_tf_amp_scale"
# On what makes a scale whose gradients can be taken again without it, in its graph:
# which output it is, and where the state counts (`rewriting.second_try`).
AGAIN = "_tf_amp_again"
# On an optimizer's kernel that takes the place of what Keras writes: the rule's name.
FUSED = "_tf_amp_fused"
# On what passes the inputs of a step that overflowed to this process.
WATCH = "_tf_amp_watch"
# On what prints a line of ours.
NOTICE = "_tf_amp_notice"
# On every node that the pass has made or retyped, or has wait for or read another one
# to hold less: such a graph is not rewritten again.
REWRITTEN = "_tf_amp_rewritten"

# The name scope in which it is found out whether gradients are finite, and the state of
# a loss scale is adjusted. What leaves it are flags that are True where they are.
SCALE_UPDATE = "tf_amp_scale_update"
# The name of branches taken where gradients are finite: those in that scope count them,
# the others hold an optimizer's step.
FINITE_BRANCH = "tf_amp_if_finite"
# The name scope of what an assignment does unless gradients overflowed.
SKIPPED_ASSIGNMENT = "tf_amp_unless_overflowed"


def mark(made: NodeDef, given: NodeDef) -> None:
    """Have a node count as made by the pass, under the settings of a given node."""
    made.attr[REWRITTEN].b = True
    # Reading an absent key would create it.
    if STAMP in given.attr:
        made.attr[STAMP].CopyFrom(given.attr[STAMP])
