"""Wait for TensorFlow, and start tf-amp where the environment asks for it.

Every Python process runs this, from one line of `tf_amp_autostart.pth` that setup.py
makes of this file. So it imports nothing and only leaves a finder in `sys.meta_path`.
Once TensorFlow has defined FuncGraph and BaseSession, their `__init__` looks at the
environment before each trace and each Session; only a switch that is on imports
tf_amp. A script may therefore set the switch any time before its first function.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CLASSES = {
    "tensorflow.python.framework.func_graph": "FuncGraph",
    "tensorflow.python.client.session": "BaseSession",
}
SWITCHES = (
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE",
)
OFF = ("", "0", "false", "off")


class TfAmpAutostart:
    """Find TensorFlow's two modules as others do, and watch them being executed."""

    # What `tf-amp doctor` looks for.
    tf_amp_autostart = True

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec that the other finders have, its loader watched."""
        if name not in CLASSES:
            return None
        for finder in sys.meta_path:
            if finder is not TfAmpAutostart and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    watch(spec.loader)
                    return spec
        return None


def watch(loader: "Any") -> None:
    """Have the loader wrap the class of a module it has executed."""
    try:
        execute = loader.exec_module

        def exec_module(module: "Any") -> None:
            execute(module)
            wrap(getattr(module, CLASSES.get(module.__name__, ""), None))

        loader.exec_module = exec_module
    except AttributeError:
        pass


def wrap(cls: "Any") -> None:
    """Have the class look at the environment whenever an instance is made."""
    if cls is None:
        return
    original = cls.__init__
    environ = sys.modules["os"].environ

    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:
        original(self, *args, **kwargs)
        for switch in SWITCHES:
            if environ.get(switch, "").strip().lower() not in OFF:
                from tf_amp import autostart

                autostart.start(self)
                break

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(__init__, name, getattr(original, name))
    __init__.__wrapped__ = original  # type: ignore[attr-defined]
    cls.__init__ = __init__


if not any(getattr(finder, "tf_amp_autostart", False) for finder in sys.meta_path):
    sys.meta_path.insert(0, TfAmpAutostart)  # type: ignore[arg-type]
