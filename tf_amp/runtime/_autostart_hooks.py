"""Start tf-amp once TensorFlow begins a computation and the environment asks for it.

When TensorFlow has defined FuncGraph, BaseSession and a few others, one method of each
is wrapped to look at the environment for each trace, each Session and so on; only a
switch that is on imports tf_amp. A script may therefore set it any time before its
first function or optimizer. Functions that may come before any of these are looked up
once more after that, since tf_amp wraps them too. Runs as a part of
`tf_amp_autostart.pth`, outside of the package, and imports nothing before.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Of a module the class and its method, and what of tf_amp.runtime.autostart gets the
# object.
METHODS = {
    "tensorflow.python.framework.func_graph": "FuncGraph __init__ start",
    "tensorflow.python.client.session": "BaseSession __init__ start",
    "tensorflow.python.training.server_lib": "Server start start",
    "tensorflow.python.checkpoint.checkpoint": "TrackableSaver __init__ start",
    "tensorflow.python.ops.resource_variable_ops": "ResourceVariable __init__ "
    "note_variable",
    "keras.src.trainers.trainer": "Trainer __init__ note_model",
    # Python looks `optimizer.apply` up before it computes the gradients for it.
    "keras.src.backend.tensorflow.optimizer": "TFOptimizer __init__ start",
    "tf_keras.src.optimizers.optimizer": "_BaseOptimizer __init__ start",
    "tf_keras.src.optimizers.legacy.optimizer_v2": "OptimizerV2 __init__ start",
    "tensorflow.python.keras.optimizer_v2.optimizer_v2": "OptimizerV2 __init__ start",
    "tensorflow.python.training.optimizer": "Optimizer __init__ start",
}
# Of a module the one that calls it by this one's name, and the functions called.
FUNCTIONS = {
    "tensorflow.python.ops.gradients_util": "tensorflow.python.ops.gradients_impl "
    "_GradientsHelper",
    "keras.src.saving.saving_lib": "keras.src.saving.saving_api "
    "load_model load_weights_only",
    "keras.src.legacy.saving.legacy_h5_format": "keras.src.saving.saving_api "
    "load_model_from_hdf5",
    "tf_keras.src.saving.saving_lib": "tf_keras.src.saving.saving_api "
    "load_model load_weights_only",
    "tf_keras.src.saving.legacy.hdf5_format": "tf_keras.src.saving.legacy.save "
    "load_model_from_hdf5",
}
SWITCHES = (
    "TF_ENABLE_AUTO_MIXED_PRECISION",
    "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE",
)
OFF = ("", "0", "false", "off")
# The other variables that are settings of ours; those of op lists begin as given.
SETTINGS = (
    "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING TF_AMP_BENCH_BATCH TF_AMP_CACHE "
    "TF_AMP_CHECK TF_AMP_COMPILE TF_AMP_DEVICE_PROFILE TF_AMP_DTYPE TF_AMP_EXCLUDE "
    "TF_AMP_FUSE TF_AMP_LOG TF_AMP_LOSS_SCALE TF_AMP_MEMORY TF_AMP_OPT_LEVEL "
    "TF_AMP_RANGES "
    "TF_AMP_STRICT TF_AMP_TIE TF_AMP_TUNE TF_AMP_VERBOSE"
).split()
LISTS = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
# One of them is in every name that may be meant as one of ours.
PARTS = ("TF_AMP", "MIXED", "PRECISION")
has_looked_at_names = False


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
            if module.__name__ in METHODS:
                owner, method, act = METHODS[module.__name__].split()
                wrap(getattr(module, owner, None), method, act)
                add_xla_flags()
            if module.__name__ in FUNCTIONS:
                caller, *functions = FUNCTIONS[module.__name__].split()
                for function in functions:
                    wrap_function(module, function, caller)

        loader.exec_module = exec_module
    except AttributeError:
        pass


def add_xla_flags() -> None:
    """Let XLA compile where the environment asks for it, before TensorFlow begins."""
    environ = sys.modules["os"].environ
    if environ.get("TF_AMP_COMPILE", "").strip().lower() in ("clusters", "on"):
        from tf_amp.config import devices

        devices.add_xla_flags()


def wrap(cls: "Any", method: str, act: str) -> None:
    """Have the class look at the environment whenever the method is called."""
    original = getattr(cls, method, None)
    if original is None:
        return

    def watched(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        # A server's first graph may come as soon as it has started.
        if method == "start":
            look(self, act)
        result = original(self, *args, **kwargs)
        if method != "start":
            look(self, act)
        return result

    put(cls, method, watched)


def wrap_function(module: "Any", function: str, caller: str) -> None:
    """Have a module look at the environment whenever its function is called."""
    original = getattr(module, function, None)
    if original is None:
        return
    name = module.__name__.rpartition(".")[2]

    def in_use() -> "Any":
        return getattr(getattr(sys.modules.get(caller), name, None), function, None)

    def watched(*args: "Any", **kwargs: "Any") -> "Any":
        before = in_use()
        look(None, "start")
        after = in_use()
        if before is watched and after is not watched:
            return after(*args, **kwargs)
        return original(*args, **kwargs)

    put(module, function, watched)


def look(made: "Any", act: str) -> None:
    """Give what was made to tf-amp if the environment asks for it."""
    environ = sys.modules["os"].environ
    for switch in SWITCHES:
        if environ.get(switch, "").strip().lower() not in OFF:
            from tf_amp.runtime import autostart

            getattr(autostart, act)(made)
            return
    global has_looked_at_names
    if not has_looked_at_names:
        has_looked_at_names = True
        if names := [name for name in environ if is_like_setting(name)]:
            from tf_amp.runtime import autostart

            autostart.note_names(names)


def is_like_setting(name: str) -> bool:
    """Tell whether a variable may be meant as one of ours, and is none."""
    is_known = name in SWITCHES or name in SETTINGS or name.startswith(LISTS)
    return name[:3] == "TF_" and not is_known and any(part in name for part in PARTS)


def put(owner: "Any", name: str, watched: "Any") -> None:
    """Put a function in the place of another, whose name and text it takes."""
    original = getattr(owner, name)
    for part in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(watched, part, getattr(original, part))
    watched.__wrapped__ = original
    setattr(owner, name, watched)
