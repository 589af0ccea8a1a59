"""Which TensorFlow is needed, and a clear error where there is none or an older one."""

from __future__ import annotations

from tf_amp.errors import TensorFlowMissingError

OLDEST_TENSORFLOW = (2, 16)


def check_tensorflow() -> None:
    """Raise TensorFlowMissingError unless a supported TensorFlow can be imported."""
    oldest = ".".join(map(str, OLDEST_TENSORFLOW))
    try:
        import tensorflow as tf
    except ImportError as error:
        raise TensorFlowMissingError(
            f"TensorFlow cannot be imported ({error})",
            "pip install tensorflow-cpu, or for GPUs: "
            "pip install 'tensorflow[and-cuda]'",
        ) from error
    version = getattr(tf, "__version__", "0.0")
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TENSORFLOW:
        raise TensorFlowMissingError(
            f"TensorFlow {version} is too old: {oldest} or newer is needed",
            f"pip install --upgrade 'tensorflow>={oldest}'",
        )
