"""Switch a method of `tf-amp bench` on where TensorFlow is imported already."""

import os

from tf_amp.tools.bench import worker
from tf_amp.tools.bench.job import is_ours, settings_of_method


def switch_on(method: str) -> None:
    """Let this process run under a method, also in a source checkout."""
    if not is_ours(method):
        worker.switch_on(method)
        return
    import tf_amp

    os.environ.update(settings_of_method(method))
    tf_amp.enable()
