"""Whether TensorFlow has its oneDNN kernels on."""

from __future__ import annotations

import pathlib

import pytest

from tf_amp.config import devices

IS_ON = devices.cpu_key().onednn
needs_onednn = pytest.mark.skipif(not IS_ON, reason="oneDNN is off on this CPU")

# Where oneDNN has no float16 on the host's CPU, TensorFlow fuses none for GPUs either.
_FLAGS = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
FUSES_FLOAT16 = not IS_ON or "avx512_fp16" in _FLAGS
