"""Gradients exchanged between replicas in 16 bits, many in one collective.

`fused.FusedAllReduce` is a `tf.distribute.CrossDeviceOps`;
`keras_callbacks.mirrored_strategy` makes a strategy with it.
"""
