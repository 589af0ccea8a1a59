"""Dense layers so small that the overhead of each call decides."""

import functools

from benchmarks.models import dense_layers

build = functools.partial(dense_layers.build, inputs=32, hidden=(64, 64), classes=10)
loss = dense_layers.loss
sample = functools.partial(dense_layers.sample, inputs=32, classes=10)
