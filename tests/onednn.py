"""What TensorFlow does where its oneDNN kernels are on, and where 16 bits gain."""

from __future__ import annotations

import pytest

from grappler_pass.costs import nearest_to_cpu
from tf_amp.config import devices

_KEY = devices.cpu_key()
IS_ON = _KEY.onednn
needs_onednn = pytest.mark.skipif(not IS_ON, reason="oneDNN is off on this CPU")
GAINS = nearest_to_cpu(_KEY) in {"cpu-avx512-bf16", "cpu-amx-bf16"}
needs_gains = pytest.mark.skipif(
    not GAINS, reason="products in 16 bits are slower here: no plan hangs on a price"
)
