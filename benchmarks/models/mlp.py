"""Dense layers, two hidden ones of width 2048."""

import functools

from benchmarks.models import dense_layers

build = functools.partial(
    dense_layers.build, inputs=1024, hidden=(2048, 2048), classes=1000
)
loss = dense_layers.loss
sample = functools.partial(dense_layers.sample, inputs=1024, classes=1000)
