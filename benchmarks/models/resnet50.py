"""ResNet-50 with random weights on 128 x 128 images."""

import functools

from benchmarks.models import image_networks

build = functools.partial(image_networks.build, "ResNet50")
loss = image_networks.loss
sample = image_networks.sample
