"""The residual network of ``make demo``, on images of handwritten digits."""

import functools

from benchmarks.models import demo

build = functools.partial(demo.build, "digits_task")
loss = demo.loss
sample = functools.partial(demo.sample, "digits_task")
