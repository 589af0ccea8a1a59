"""Make a Python function one of TensorFlow's Grappler optimizers.

`load` registers the compiled shim with TensorFlow, once per device type; `set_callback`
and `clear_callback` then say who gets the graphs. TensorFlow calls from threads of its
own, several at once, and no lock is held here meanwhile. What the callback decides is
its own affair; whatever goes wrong in it, the graph passes through unchanged.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import pathlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from absl import logging

from grappler_pass import _tensorflow_c_api
from grappler_pass._tensorflow_private import load_plugin
from grappler_pass.errors import ShimError
from grappler_pass.fork_safety import per_process, renewed_lock
from grappler_pass.graph.shapes import Shapes, shape_from_proto

DEVICE_TYPES = ("CPU", "GPU")

# How long interpreter exit and `clear_callback` wait for passes that are under way.
IDLE_TIMEOUT_SECONDS = 30.0

_UNCHANGED, _REPLACED, _INTERRUPTED = range(3)
_Trampoline = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p
)


class GrapplerItem:
    """What TensorFlow says about a graph; valid only during the callback."""

    def __init__(self, address: int) -> None:
        """Take the address of a TF_GrapplerItem."""
        self._address: int | None = address

    @property
    def preserve(self) -> tuple[str, ...]:
        """Names of the nodes to keep: fetches, feeds, init and keep ops."""
        return _tensorflow_c_api.names_of(self._valid_address(), "NodesToPreserve")

    @property
    def fetch(self) -> tuple[str, ...]:
        """Names of the nodes whose outputs are read."""
        return _tensorflow_c_api.names_of(self._valid_address(), "FetchNodes")

    def shapes(self, node_names: Sequence[str]) -> Shapes:
        """Infer the static shapes of nodes.

        Where TensorFlow cannot infer any, a warning is logged and none are returned.
        """
        address = self._valid_address()
        try:
            return {
                name: tuple(shape_from_proto(each.shape) for each in outputs)
                for name, outputs in _tensorflow_c_api.output_properties(
                    address, node_names
                )
            }
        except _tensorflow_c_api.CApiError as error:
            logging.log_first_n(
                logging.WARNING, "Graphs are planned without shapes: %s", 1, error
            )
            return {}

    def expire(self) -> None:
        """Forget the address: TensorFlow is about to free what it points to."""
        self._address = None

    def _valid_address(self) -> int:
        if self._address is None:
            raise ValueError(
                "This GrapplerItem has expired: read it inside the callback that got "
                "it, not later."
            )
        return self._address


OptimizeGraph = Callable[[bytes, GrapplerItem], bytes | None]


class _Bridge:
    """What this process has registered, and who gets the graphs."""

    def __init__(self) -> None:
        self.shims: dict[str, ctypes.CDLL] = {}
        self.optimize: OptimizeGraph | None = None
        # One for each call that is to meet no pass, of any thread.
        self.pauses: set[object] = set()
        self.lock = renewed_lock()
        # Lives as long as the process: TensorFlow may be on its way into it.
        self.trampoline = _Trampoline(self._answer)

    @contextlib.contextmanager
    def changed(self) -> Iterator[None]:
        """Tell the shims whether to ask, once something has been changed within."""
        with self.lock:
            yield
            asks = self.optimize is not None and not self.pauses
            function = ctypes.cast(self.trampoline, ctypes.c_void_p) if asks else None
            for shim in self.shims.values():
                shim.tf_amp_set_callback(function)

    def forget_parent(self) -> None:
        """Follow the shim, which drops its callback in a forked child."""
        self.optimize = None
        self.pauses.clear()

    def _answer(self, graph: int, length: int, item: int, output: int) -> int:
        """Ask Python for another graph; called by the shim, must not raise."""
        optimize = self.optimize
        if optimize is None:
            return _UNCHANGED
        grappler_item = GrapplerItem(item)
        try:
            optimized = optimize(ctypes.string_at(graph, length), grappler_item)
            if optimized is None:
                return _UNCHANGED
            shim = next(iter(self.shims.values()))
            failed = shim.tf_amp_write_graph(output, optimized, len(optimized))
            return _UNCHANGED if failed else _REPLACED
        except KeyboardInterrupt:
            return _INTERRUPTED
        except BaseException:
            logging.warning("A graph passes through unchanged.", exc_info=True)
            return _UNCHANGED
        finally:
            grappler_item.expire()


_bridge = _Bridge()


def load(optimize: OptimizeGraph, device_types: Sequence[str] = DEVICE_TYPES) -> None:
    """Register with TensorFlow, and pass every graph to `optimize` from now on.

    Args:
      optimize: gets a serialized GraphDef and its item; returns another one, or None
        to leave the graph unchanged. Called on TensorFlow's threads.
      device_types: graphs that have a device of these types are optimized.

    Raises:
      ShimError: the compiled shim is missing, or TensorFlow will not load it.
    """
    for device_type in device_types:
        if device_type not in _bridge.shims:
            _bridge.shims[device_type] = _load_shim(device_type)
    set_callback(optimize)


def set_callback(optimize: OptimizeGraph) -> None:
    """Pass graphs to `optimize` from now on; a forked child calls it for itself."""
    with _bridge.changed():
        _bridge.optimize = optimize


def clear_callback(timeout_seconds: float = IDLE_TIMEOUT_SECONDS) -> bool:
    """Let graphs pass unchanged, and wait for passes under way in other threads.

    Returns:
      Whether all of them ended within `timeout_seconds`.
    """
    with _bridge.changed():
        _bridge.optimize = None
    milliseconds, shims = int(timeout_seconds * 1000), _bridge.shims.values()
    return not any([shim.tf_amp_wait_idle(milliseconds) for shim in shims])


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Let graphs pass unchanged without asking Python.

    For calls that keep Python's lock while other threads of TensorFlow run graphs: the
    callback would wait for the lock, and the call for the graph. Several may be under
    way at once; a callback that is set meanwhile serves once all of them have ended.
    """
    pause = object()
    try:
        with _bridge.changed():
            _bridge.pauses.add(pause)
        yield
    finally:
        with _bridge.changed():
            _bridge.pauses.discard(pause)


# At exit no thread of TensorFlow may be inside Python when the interpreter goes away.
atexit.register(clear_callback)
per_process(_bridge.forget_parent)


def shim_path(device_type: str) -> pathlib.Path:
    """Return where the shim compiled for a device type belongs."""
    return pathlib.Path(__file__).with_name(f"_shim_{device_type.lower()}.so")


def _load_shim(device_type: str) -> ctypes.CDLL:
    path = shim_path(device_type)
    if not path.is_file():
        remedy = (
            "In your copy of the repository run `pip install --force-reinstall "
            "--no-deps .`."
        )
        root = path.parent.parent
        if (root / "pyproject.toml").is_file():
            # Python looks for modules where a script is, before what is installed.
            remedy = (
                f"{root} has the sources of tf-amp: move your script to another "
                "folder, or run `pip install -e .` there."
            )
        raise ShimError(f"The compiled shim {path} is missing. {remedy}")
    # TensorFlow would abort beside another installation's shim.
    mapped = ""
    with contextlib.suppress(OSError):
        mapped = pathlib.Path("/proc/self/maps").read_text(errors="replace")
    loaded = {line.split()[-1] for line in mapped.splitlines() if path.name in line}
    others = sorted(copy for copy in loaded if pathlib.Path(copy) != path.resolve())
    if others:
        raise ShimError(
            f"{path} cannot be loaded beside {others[0]}, which this process has "
            "loaded already. Uninstall one of the two copies of tf-amp."
        )
    try:
        shim = ctypes.CDLL(str(path))
        load_plugin(str(path))
    except (OSError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        raise ShimError(
            f"TensorFlow {tf.__version__} cannot load the compiled shim {path}: "
            f"{error}. Reinstall the package on this machine, with TensorFlow 2.16 or "
            "newer."
        ) from error
    shim.tf_amp_set_callback.argtypes = (ctypes.c_void_p,)
    shim.tf_amp_set_callback.restype = None
    write_types = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    shim.tf_amp_write_graph.argtypes = write_types
    shim.tf_amp_wait_idle.argtypes = (ctypes.c_int,)
    return shim
