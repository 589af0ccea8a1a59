"""MobileNetV2 with random weights on 128 x 128 images."""

import functools

from benchmarks.models import image_networks

build = functools.partial(image_networks.build, "MobileNetV2")
loss = image_networks.loss
sample = image_networks.sample
