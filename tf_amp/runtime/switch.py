"""Switch mixed precision on and off, for what is traced from then on.

`enable` makes settings, patches TensorFlow so that new operations carry their stamp,
and registers the pass with Grappler. The graphs arrive in `arriving_graphs`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from absl import logging

from grappler_pass.fork_safety import renewed_lock
from tf_amp import _tensorflow_private as private
from tf_amp._tensorflow_private import workers as private_workers
from tf_amp.config import scope_registry, workers
from tf_amp.config.amp_config import AmpConfig, checked_settings
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.errors import ShimError
from tf_amp.message_codes import Code
from tf_amp.rewriting import graph_settings, host, unseen
from tf_amp.runtime import installation, model_scopes
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tracing import stamps
from tf_amp.tracing.stamps import current_config, stamp_graph

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan

Lists = Mapping[str, Mapping[str, Iterable[str]]]

_lock = renewed_lock()
_open_scopes = 0


def enable(
    dtype: str | None = None,
    *,
    opt_level: str | None = None,
    lists: Lists | None = None,
    device_profile: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    strict: bool | None = None,
    exclude: Iterable[Any] | None = None,
    tune: str | None = None,
    fuse: str | Iterable[str] | None = None,
    loss_scale: LossScale | float | str | None = None,
    ranges: str | os.PathLike[str] | None = None,
    verbose: bool | None = None,
    check: bool | None = None,
) -> None:
    """Rewrite graphs of functions traced, and Sessions made, from now on.

    What is not given comes from the environment; what is given goes before it.
    Functions traced earlier keep the settings they were traced under, or none.

    Args:
      dtype: "bfloat16" or "float16"; None lets each device choose.
      opt_level: "O0" to "O3", see `amp_config.LEVELS`; default "O1".
      lists: edits such as `{"add": {"deny": ["Tanh"]}, "remove": {"clear": ["Pad"]}}`.
      device_profile: plan for this device: a shipped profile's name, or a path.
      log_dir: folder for each graph before and after, with its plan.
      strict: raise when a rewrite fails, rather than warn.
      exclude: regular expressions, or `@FILE` for a file of them, and Keras layers;
        operations with such a name, or that such a layer makes when it is called, and
        their gradients, stay float32.
      tune: "on" (default) or "off": whether the program's own steps decide what is
        close, or prices alone.
      fuse: names of rewrites beside types, "on" (default) or "off".
      loss_scale: a loss scale, a number or words for one, whatever the type; by default
        "dynamic" for float16 and "none" for bfloat16.
      ranges: file from `tf-amp ranges`; what left the safe range stays float32.
      verbose: say on stderr what has become of the first graph, and the like.
      check: run 16-bit kernels of kinds that were found wrong before they are used.

    Raises:
      ConfigError: a setting is unknown, or two contradict each other.
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      ShimError: the compiled shim is missing or cannot be loaded.
    """
    # Its arguments have the names of settings.
    settings = checked_settings(**locals())
    check_tensorflow()
    config = dataclasses.replace(AmpConfig.from_env(), enabled=True, **settings)
    switch_on(config)
    unseen.watch()
    private.install_when_imported(private.MAKE_MODEL, private.acting_after(_note_model))


init = enable


def enable_from_environment(made: Any = None) -> None:
    """Enable as the environment says; what the autostart calls.

    What the program itself has called for stays in force. Where the shim cannot be
    loaded, a warning is logged and everything stays float32: the program itself has
    done nothing wrong. What is made at the time is the graph of a function or a
    Session, whose operations are not stamped yet, or a server that is about to start.

    Raises:
      ConfigError: a variable is unknown, or two contradict each other.
      TensorFlowMissingError: TensorFlow is too old.
    """
    choice = scope_registry.choice()
    if choice.is_programs:
        # A forked child has to register the pass anew.
        if choice.scope is not None:
            switch_on(choice.scope.config)
        return
    config = AmpConfig.from_env()
    if not config.enabled:
        return
    check_tensorflow()
    try:
        switch_on(config, is_programs=False)
    except ShimError as error:
        if config.strict:
            raise
        Code.SWITCH_FAILED.warn(
            "Mixed precision stays off: %s",
            error,
        )
        return
    take_in(made)


def take_in(made: Any) -> None:
    """Let what was in the making while mixed precision was enabled count as later."""
    if private.is_session(made):
        stamp_graph(made.graph)
    is_on = scope_registry.scope_in_force() is not None
    if is_on and private_workers.is_server(made):
        workers.serve(made)


def disable() -> None:
    """Leave alone what is traced from now on, and undo the patches of TensorFlow.

    Functions traced while it was enabled keep their settings, and the patches stay that
    these need: of what converts to TFLite, and if they were strict, of what raises what
    fails in them. Scopes that are entered at the time hold
    until they are left.
    """
    with _lock:
        scope_registry.put_in_force(None, is_programs=True)
        if not _open_scopes:
            host.forget()
            installation.remove()


def is_enabled() -> bool:
    """Tell whether functions traced now will be rewritten."""
    return current_config() is not None


def is_switched_off() -> bool:
    """Tell whether the program has called `disable`, and not `enable` since."""
    return scope_registry.choice() == scope_registry.InForce(None, is_programs=True)


def open_scope(config: AmpConfig | None) -> str:
    """Prepare for a scope, or for one that needs just marks; return its settings' id.

    Raises:
      ConfigError: the configuration cannot be used.
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      ShimError: the compiled shim is missing or cannot be loaded.
    """
    global _open_scopes
    check_tensorflow()
    if config is not None and scope_registry.known_scope(config) is None:
        graph_settings.check_config(config)
    with _lock:
        _install(config)
        model_scopes.install()
        _open_scopes += 1
        if config is None:
            return stamps.OFF
        return scope_registry.scope_from_config(config).id


def close_scope() -> None:
    """Note that a scope is left.

    The patches stay, doing nothing but let gradients made from now on have the settings
    of the functions that they differentiate.
    """
    global _open_scopes
    with _lock:
        _open_scopes -= 1


def plans() -> tuple[Plan, ...]:
    """Return the plans applied in this process, oldest first, the last 256 at most.

    They have bytes of activations where something showed them as they were made, too:
    a folder in TF_AMP_LOG, a callback, or a log at INFO. Those of `explain` always do.
    """
    return tuple(host.current().plans)


def _note_model(result: None, model: Any, *args: Any, **kwargs: Any) -> None:
    unseen.note_model()


def switch_on(config: AmpConfig, *, is_programs: bool = True) -> None:
    """Put a configuration in force, whatever was before.

    `is_programs`: whether the program calls for it, not the environment.
    """
    from tf_amp.compare import call_sites

    graph_settings.check_config(config)
    with _lock:
        _install(config)
        scope_registry.put_in_force(config, is_programs=is_programs)
    call_sites.begin_anew()
    logging.vlog(1, "mixed precision enabled: %s", config)


def _install(config: AmpConfig | None) -> None:
    """Patch what marks operations, and for a configuration what rewrites them."""
    installation.install_marking()
    installation.install_loss_scaling()
    if config is not None:
        stamps.install_for_layers(config.exclude)
        installation.install_rewriting(config)
