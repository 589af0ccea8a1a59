"""Whether TensorFlow has its oneDNN kernels on."""

from __future__ import annotations

import pytest

from tf_amp.config import devices

IS_ON = devices.cpu_key().onednn
needs_onednn = pytest.mark.skipif(not IS_ON, reason="oneDNN is off on this CPU")
