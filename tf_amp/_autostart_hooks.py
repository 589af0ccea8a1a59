"""Start tf-amp once TensorFlow begins a computation and the environment asks for it.

When TensorFlow has defined FuncGraph and BaseSession, their `__init__` is wrapped to
look at the environment for each trace and each Session; only a switch that is on
imports tf_amp. A script may therefore set it any time before its first function. Runs
as a part of `tf_amp_autostart.pth`, outside of the package, and imports nothing before.
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


def find_watched(name: str, path: "Any", target: "Any") -> "Any":
    """Find a module as the other finders do, and watch its loader."""
    for finder in sys.meta_path:
        if not hasattr(finder, "tf_amp_autostart") and hasattr(finder, "find_spec"):
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
