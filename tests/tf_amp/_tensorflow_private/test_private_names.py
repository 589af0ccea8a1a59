"""Where a private name of TensorFlow or Keras is gone, one warning says what is lost.

Each is taken away alone: enabling works, and so does a small step of training.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.fresh_process import output_of
from tests.processes import ROOT
from tf_amp import _tensorflow_private as private
from tf_amp._tensorflow_private import (
    functions,
    graphs,
    tracing,
    training,
)

# Of a MirroredStrategy that is asked for 16 bits, and of callbacks; not of `enable`.
ELSEWHERE = {training.KERAS_ALL_REDUCE, *tracing.CALLBACK_LISTS}


def hooks_in(modules: tuple[str, ...]) -> list[private.Hook]:
    """Return every hook that is named, of modules whose names begin so."""
    found = {}
    parts = pkgutil.iter_modules(private.__path__, f"{private.__name__}.")
    for name in (private.__name__, *(part.name for part in parts)):
        for value in vars(importlib.import_module(name)).values():
            # A hook is a tuple itself.
            is_one = isinstance(value, private.Hook) or not isinstance(value, tuple)
            for each in (value,) if is_one else value:
                if isinstance(each, private.Hook):
                    found[each] = each.module.startswith(modules)
    return [hook for hook, belongs in found.items() if belongs]


# Prints for each hook whether the step was taken, and each name said to be gone.
WITHOUT_EACH = """
from absl import logging
from tests.tf_amp._tensorflow_private.test_private_names import hooks_in
from tf_amp import _tensorflow_private as private
from tf_amp import message_codes
from tf_amp._tensorflow_private import functions, graphs

owner_of, gone, told = private._owner_of, None, []
private._owner_of = lambda hook: None if hook == gone else owner_of(hook)
logging.warning = lambda text, *args, **kwargs: told.append(text % args)
weights = tf.Variable(EYE)

def gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(X @ weights))
    return tape.gradient(loss, weights)

for gone in hooks_in(MODULES):
    message_codes._said.clear()
    options = dict(opt_level="O2", loss_scale=2.0**10, exclude=LAYERS)
    tf_amp.enable("bfloat16", **options)
    tf_amp.enable("bfloat16", strict=True, **options)
    with tf_amp.mixed_precision_scope():
        pass
    weights.assign(EYE)
    take_step()
    moved = bool(tf.reduce_any(weights < EYE))
    print(moved, *(line.partition(" has no ")[2] for line in told), sep=";")
    told.clear()
    tf_amp.disable()
    kept = {private.CALL_FUNCTION, functions.RUN_IN_SESSION, graphs.CONVERT_TO_TFLITE}
    left = {hook for hook in private.installed() if not hook.of_callbacks}
    assert left == kept - {gone}
    private.remove(of_callbacks=True)
"""
STEPS = {
    ("tensorflow",): """
LAYERS = []

def take_step():
    tf.function(lambda: weights.assign_sub(gradient()), autograph=False)()
""",
    ("keras", "tf_keras"): """
import importlib
import keras, tf_keras
from tests.tf_amp._tensorflow_private.test_private_names import hooks_in

for hook in hooks_in(MODULES):
    importlib.import_module(hook.module)
kits = keras, tf_keras
LAYERS = [kit.layers.Dense(1) for kit in kits]

def take_step():
    for kit in kits:
        optimizer = kit.optimizers.SGD(0.5)
        optimizer.apply_gradients([(gradient(), weights)])
""",
}


@pytest.mark.parametrize("modules", STEPS, ids=str)
def test_each_hook_may_be_gone(modules: tuple[str, ...]) -> None:
    program = f"MODULES = {modules!r}\n{STEPS[modules]}{WITHOUT_EACH}"
    hooks = hooks_in(modules)
    lines = output_of(program)
    assert len(lines) == len(hooks) > 20
    for hook, line in zip(hooks, lines, strict=True):
        name = f"{hook.owner or hook.module}.{hook.method}"
        told = f"{name} any more: {hook.without}. (AMP203)"
        assert line.split(";") == ["True", *[told] * (hook not in ELSEWHERE)], hook


class _Bare:
    """What has none of the private attributes."""


def _in_xla_context() -> bool:
    with tf.Graph().as_default():
        return training.in_xla_context()


LOOK_UPS: dict[str, tuple[Callable[[], Any], Any]] = {
    "IsMklEnabled": (private.is_onednn_enabled, None),
    "is_op_determinism_enabled": (private.is_determinism_enabled, False),
    "context().config": (private.session_config, tf.compat.v1.ConfigProto()),
    "distribute_utils.regroup": (training.can_mirror, False),
    "in_save_context": (functions.is_exporting, False),
    "_get_control_flow_context": (lambda: tracing.frames_of(_Bare()), ()),
    "_BACKWARD_PREFIX": (lambda: functions.is_backward_pass(_Bare()), False),
    "FuncGraph._functions": (lambda: functions.compiled_callees(_Bare()), ()),
    "AtomicFunction.definition": (lambda: functions.access_to(_Bare()), None),
    "Context.function_call_options": (lambda: functions.has_instances(_Bare()), False),
    "get_function_def": (lambda: graphs.function_named("f"), None),
    "record_operation": (lambda: training.with_slope(abs, -1, abs), 1),
    "get_resource_handle_data": (lambda: tracing.handle_contents(_Bare()), ()),
    "clear_kernel_cache": (tracing.forget_kernels, None),
    "get_flat_tensors_for_gradients": (lambda: training.differentiated_parts([1]), [1]),
    "GradientTape._tape": (lambda: training.holds_recording(_Bare()), False),
    "GraphOrParentsInXlaContext": (_in_xla_context, False),
    "get_server_def": (functions.connected_cluster, None),
    "_collective_ops_server_def": (functions.collective_server, None),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_what_is_looked_up_may_be_gone(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look_up, otherwise = LOOK_UPS[name]
    import_module = importlib.import_module

    def import_nothing_private(module: str, *args: Any) -> Any:
        if module.startswith("tensorflow.python"):
            raise ImportError(f"No module named {module}")
        return import_module(module, *args)

    monkeypatch.setattr(importlib, "import_module", import_nothing_private)
    for _ in range(2):
        assert look_up() == otherwise
    monkeypatch.undo()
    (record,) = caplog.records
    assert f" has no {name} any more: " in record.getMessage()


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("lite/python/wrap_toco.py", "wrapped_toco_convert"),
        ("other", "wrapped_convert"),
    ],
)
def test_the_converter_to_tflite_is_where_the_release_has_it(
    place: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a_tensorflow" / place
    file.parent.mkdir(parents=True)
    file.write_text("")
    (tmp_path / "a_tensorflow" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert graphs._converter("a_tensorflow").endswith(f":{found}")


def test_private_modules_of_tensorflow_are_imported_in_rooms_of_their_own() -> None:
    # What starts with the interpreter names modules, and imports none.
    rooms = ("_tensorflow_private", "_autostart")
    importing = [
        str(path.relative_to(ROOT))
        for package in ("grappler_pass", "tf_amp", "keras_callbacks")
        for path in (ROOT / package).rglob("*.py")
        if "tensorflow.python" in path.read_text()
    ]
    assert len(importing) > 5
    assert not [path for path in importing if not any(map(path.count, rooms))]
