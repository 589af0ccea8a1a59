"""What holds for tests on a GPU, which several processes share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Read by TensorFlow when it first uses a GPU, of which it would take all the memory.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


@pytest.fixture(autouse=True)
def exact_float32(disabled_afterwards: None) -> Iterator[None]:
    """Compute float32 in float32, which many GPUs otherwise do with 10 bits."""
    import tensorflow as tf

    config = tf.config.experimental
    before = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    yield
    config.enable_tensor_float_32_execution(before)
