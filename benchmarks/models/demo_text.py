"""The causal transformer of ``make demo``, on NumPy's documentation."""

import functools

from benchmarks.models import demo

build = functools.partial(demo.build, "text_task")
loss = demo.loss
sample = functools.partial(demo.sample, "text_task")
