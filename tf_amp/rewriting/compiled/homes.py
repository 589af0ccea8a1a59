"""The device that a function runs on which XLA compiles: one for all of it.

Such a function is rewritten when it is made, before it is placed. TensorFlow then runs
it where it is called: on the device that `tf.device` names there, else on a GPU if
there is one. What `tf.device` says within it does not count.
"""

from __future__ import annotations

from tf_amp._tensorflow_private import functions as private
from tf_amp.config import devices


def device_type_of_compiled() -> str:
    """Return the type of device that a function runs on which is made, or called, here.

    Not known is where else it will be called.
    """
    if all(device.device_type == "CPU" for device in devices.present_devices()):
        return "CPU"
    return "CPU" if private.device_type_in_force() == "CPU" else "GPU"
