"""Start tf-amp once TensorFlow begins a computation and the environment asks for it.

When TensorFlow has defined FuncGraph, BaseSession and Server, one method of each is
wrapped to look at the environment for each trace, each Session and each server; only a
switch that is on imports tf_amp. A script may therefore set it any time before its
first function. Runs as a part of `tf_amp_autostart.pth`, outside of the package, and
imports nothing before.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METHODS = {
    "tensorflow.python.framework.func_graph": ("FuncGraph", "__init__"),
    "tensorflow.python.client.session": ("BaseSession", "__init__"),
    "tensorflow.python.training.server_lib": ("Server", "start"),
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
    """Have the loader wrap a method of a module it has executed."""
    try:
        execute = loader.exec_module

        def exec_module(module: "Any") -> None:
            execute(module)
            owner, method = METHODS.get(module.__name__, ("", ""))
            wrap(getattr(module, owner, None), method)

        loader.exec_module = exec_module
    except AttributeError:
        pass


def wrap(cls: "Any", method: str) -> None:
    """Have the class look at the environment whenever the method is called."""
    original = getattr(cls, method, None)
    if original is None:
        return
    environ = sys.modules["os"].environ

    def look(self: "Any") -> None:
        for switch in SWITCHES:
            if environ.get(switch, "").strip().lower() not in OFF:
                from tf_amp import autostart

                autostart.start(self)
                break

    def watched(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        # A server's first graph may come as soon as it has started.
        if method == "start":
            look(self)
        result = original(self, *args, **kwargs)
        if method != "start":
            look(self)
        return result

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(watched, name, getattr(original, name))
    watched.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(cls, method, watched)
