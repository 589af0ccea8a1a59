"""Which loss scale a configuration asks for."""

from __future__ import annotations

import functools

from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.loss_scales.constant import NoOpLossScale
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import loss_scale_from_words

NO_SCALING = NoOpLossScale()


def loss_scale_for(config: AmpConfig | None) -> LossScale:
    """Return the loss scale for gradients taken under a configuration, if any.

    What the user asks for goes before all else, whatever the type. Where nothing was
    said, float16 needs scaling, and what stays float32 or becomes bfloat16 does not.
    """
    if config is None:
        return NO_SCALING
    if config.loss_scale is not None:
        return config.loss_scale
    if config.rewrites and low_dtype_of(config) == "float16":
        return loss_scale_from_words("dynamic")
    return NO_SCALING


def low_dtype_of(config: AmpConfig | None) -> str:
    """Return the 16-bit type that graphs are rewritten to; by default the device's."""
    if config is None:
        return _low_dtype(None, None)
    return _low_dtype(config.dtype, config.device_profile)


@functools.cache
def _low_dtype(dtype: str | None, device_profile: str | None) -> str:
    if dtype is not None:
        return dtype
    has_gpu = any(d.device_type == "GPU" for d in devices.present_devices())
    if device_profile is None:
        return devices.device_of_type("GPU" if has_gpu else "CPU").low_dtype
    config = AmpConfig(device_profile=device_profile)
    return devices.choose(config, "GPU" if has_gpu else "CPU").low_dtype
