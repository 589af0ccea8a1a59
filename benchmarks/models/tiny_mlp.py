"""Dense layers so small that the overhead of each call decides."""

import functools

from benchmarks.models import dense_layers

build = functools.partial(dense_layers.build, 32, (64, 64), 10)
loss = dense_layers.loss
sample = functools.partial(dense_layers.sample, 32, 10)
