"""Dense layers, two hidden ones of width 2048."""

import functools

from benchmarks.models import dense_layers

build = functools.partial(dense_layers.build, 1024, (2048, 2048), 1000)
loss = dense_layers.loss
sample = functools.partial(dense_layers.sample, 1024, 1000)
