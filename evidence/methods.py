"""The ways to train that are compared, each in processes of its own.

tf-amp computes in 16 bits whatever stays as exact as casts by hand, whether that pays
or not, for a CPU with 16-bit units, so that every machine trains alike.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from tf_amp.tools.bench.job import FLOAT32, KERAS, OURS, TENSORFLOW

REFERENCE = "float32"
_OWN_PREFIXES = ("TF_AMP_", "TF_ENABLE_AUTO_MIXED", "TF_AUTO_MIXED")
_OURS = {
    "TF_ENABLE_AUTO_MIXED_PRECISION": "1",
    "TF_AMP_DEVICE_PROFILE": "cpu-avx512-bf16",
    "TF_AMP_OPT_LEVEL": "O2",
    "TF_AMP_TUNE": "off",
    "TF_AMP_VERBOSE": "0",
}


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
      name: on the command line and in files.
      title: for people.
      environment: variables of its processes.
      switched: what a process switches on before it builds a model, as `tf-amp bench`
        calls it.
    """

    name: str
    title: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    switched: str = FLOAT32


METHODS = (
    Method(REFERENCE, "float32"),
    Method("keras", "Keras' policy, bfloat16", switched=KERAS),
    Method("tensorflow", "TensorFlow's pass, bfloat16", switched=TENSORFLOW),
    Method("bfloat16", "tf-amp, bfloat16 at O2", _OURS, switched=OURS),
    Method(
        "float16",
        "tf-amp, float16 at O2",
        {
            **_OURS,
            "TF_ENABLE_AUTO_MIXED_PRECISION": "float16",
            "TF_AMP_LOSS_SCALE": "dynamic",
        },
        switched=OURS,
    ),
)


def method_of(name: str) -> Method:
    """Return the method called ``name``."""
    return next(each for each in METHODS if each.name == name)


def environment_of(method: Method) -> dict[str, str]:
    """Return the caller's environment without its own switches, plus the method's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OWN_PREFIXES)
    }
    always = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return kept | always | dict(method.environment)
