"""Notice the import of TensorFlow at the least cost to every other program.

Each Python process runs this when it starts, from the one line of
`tf_amp_autostart.pth` that setup.py makes of this file. So it imports nothing, and the
rest of the work (`_autostart_hooks`) is a string that only TensorFlow's import runs.
Imported from the package, it does the same for a process that has not read the file.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# setup.py puts the code of that module here.
HOOKS = "from tf_amp.runtime._autostart_hooks import find_watched"


class TfAmpAutostart:
    """Watch the modules of TensorFlow in which computations begin."""

    # What `tf-amp doctor` looks for.
    tf_amp_autostart = True

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec that the other finders have, its loader watched."""
        if name in (
            "tensorflow.python.framework.func_graph",
            "tensorflow.python.client.session",
            "tensorflow.python.training.server_lib",
            "tensorflow.python.checkpoint.checkpoint",
            "tensorflow.python.ops.gradients_util",
            "tensorflow.python.ops.resource_variable_ops",
            "tensorflow.python.training.optimizer",
            "tensorflow.python.keras.optimizer_v2.optimizer_v2",
            "keras.src.backend.tensorflow.optimizer",
            "keras.src.trainers.trainer",
            "keras.src.saving.saving_lib",
            "keras.src.legacy.saving.legacy_h5_format",
            "tf_keras.src.optimizers.optimizer",
            "tf_keras.src.optimizers.legacy.optimizer_v2",
            "tf_keras.src.saving.saving_lib",
            "tf_keras.src.saving.legacy.hdf5_format",
        ):
            hooks: dict[str, Any] = {}
            # A traceback through them names the file that they are from.
            exec(compile(HOOKS, "<tf_amp_autostart.pth>", "exec"), hooks)
            return hooks["find_watched"](name, path, target)
        return None


sys.meta_path.insert(0, TfAmpAutostart)
