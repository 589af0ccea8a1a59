"""Which policies of Keras are in force, of what has been imported."""

from __future__ import annotations

import sys
from typing import Any


def global_policies() -> tuple[str, ...]:
    """Return the names of the policies that new layers of Keras and tf_keras get."""
    keras: Any = sys.modules.get("keras")
    tf_keras: Any = sys.modules.get("tf_keras")
    policies = []
    if hasattr(keras, "config"):
        policies.append(keras.config.dtype_policy())
    if hasattr(tf_keras, "mixed_precision"):
        policies.append(tf_keras.mixed_precision.global_policy())
    return tuple(str(policy.name) for policy in policies)
