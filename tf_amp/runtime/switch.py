"""Switch mixed precision on and off, for what is traced from then on.

`enable` makes settings, takes the hooks of TensorFlow, so that new operations carry
their stamp, and registers the pass with Grappler. `_tensorflow_private` names the
hooks; `stamps` says what is done where operations are made. The graphs arrive in
`arriving_graphs`.
"""

from __future__ import annotations

import functools
from typing import Any

from absl import logging

from grappler_pass.annotations import STAMP, WATCH
from grappler_pass.fork_safety import renewed_lock
from tf_amp import _tensorflow_private as private
from tf_amp._tensorflow_private import functions, graphs
from tf_amp.compare import call_sites
from tf_amp.config import scope_registry, workers
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.devices import (
    NO_SCALING,
    add_xla_flags,
    loss_scale_for,
)
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.errors import ShimError
from tf_amp.message_codes import Code
from tf_amp.rewriting import (
    agreement,
    arriving_graphs,
    clusters,
    compiled,
    failures,
    graph_settings,
    host,
    stripping,
    unseen,
)
from tf_amp.runtime import model_scopes
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tracing import stamps
from tf_amp.tracing.stamps import current_config, settings_here, stamp_graph

_lock = renewed_lock()
_open_scopes = 0


def watch_eager_code() -> None:
    """Say at the end if nothing could be rewritten, and of which models nothing is."""
    unseen.watch()
    note_model = private.acting_after(lambda *args, **kwargs: unseen.note_model())
    private.install({private.MAKE_MODEL: note_model})


def enable_from_environment(made: Any = None) -> None:
    """Enable as the environment says; what the autostart calls.

    What the program itself has called for stays in force. Where the shim cannot be
    loaded, a warning is logged and everything stays float32: the program itself has
    done nothing wrong. What is made at the time is the graph of a function or a
    Session, whose operations are not stamped yet, or a server that is about to start.

    Raises:
      ConfigError: a variable's value is unknown, or two contradict each other.
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
        Code.SWITCH_FAILED.warn("Mixed precision stays off: %s", error)
        return
    take_in(made)


def take_in(made: Any) -> None:
    """Let what was in the making while mixed precision was enabled count as later."""
    if private.is_session(made):
        stamp_graph(made.graph)
    is_on = scope_registry.scope_in_force() is not None
    if is_on and functions.is_server(made):
        workers.serve(made)


def switch_off() -> None:
    """Leave alone what is traced from now on, and undo the patches of TensorFlow.

    Those stay that functions traced before need: of what converts to TFLite, and if
    they were strict, of what raises what fails in them.
    """
    with _lock:
        scope_registry.put_in_force(None, is_programs=True)
        if _open_scopes:
            return
        host.forget()
        kept = [private.CALL_FUNCTION, functions.RUN_IN_SESSION]
        kept.append(graphs.CONVERT_TO_TFLITE)
        if call_sites.decide_calls():
            kept.append(functions.CALL_IN_EAGER_MODE)
        private.remove(kept)


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


def switch_on(config: AmpConfig, *, is_programs: bool = True) -> None:
    """Put a configuration in force, whatever was before.

    `is_programs`: whether the program calls for it, not the environment.
    """
    graph_settings.check_config(config)
    with _lock:
        _install(config)
        scope_registry.put_in_force(config, is_programs=is_programs)
    for site in call_sites.all_sites():
        site.is_new = True
    logging.vlog(1, "mixed precision enabled: %s", config)


def _install(config: AmpConfig | None) -> None:
    """Patch what marks operations, and for a configuration what rewrites them."""
    stamps.install_hooks()
    private.install(
        {
            graphs.BUILD_META_GRAPH: stripping.stripping_built,
            graphs.CREATE_META_GRAPH: stripping.stripping_created,
            graphs.SAVE_BUILDER: stripping.stripping_saved,
        }
    )
    _install_loss_scaling()
    if config is not None:
        stamps.install_for_layers(config.exclude)
        _install_rewriting(config)


def _install_loss_scaling() -> None:
    """Scale losses where gradients are computed, and skip steps that overflow."""
    from tf_amp.training import checkpoints, gradients, optimizers
    from tf_amp.training.program_scaling import is_scaling_forbidden

    def current_loss_scale() -> LossScale:
        config = current_config()
        loss_scale = loss_scale_for(config)
        if config is None or not loss_scale.scales:
            return loss_scale
        if is_scaling_forbidden():
            return NO_SCALING
        agreement.check_once(config, wait=True)
        return loss_scale

    gradients.install(current_loss_scale)
    optimizers.install()
    checkpoints.install()


def _install_rewriting(config: AmpConfig) -> None:
    """Hand graphs over to the pass; under strict settings failures are raised.

    Raises:
      ShimError: the compiled shim is missing or cannot be loaded.
    """
    from grappler_pass import plugin
    from tf_amp.rewriting import notices
    from tf_amp.training import overflow_origin

    if config.compile != "off":
        add_xla_flags()
        model_scopes.install()
    _build_host()
    plugin.load(arriving_graphs.rewrite_graph)

    def stamp_session(result: None, session: Any, *args: Any, **kwargs: Any) -> None:
        stamp_graph(session.graph)

    comparing_runs = functools.partial(
        call_sites.comparing_runs,
        times_changed=overflow_origin.times_returned,
        first_called=notices.mention_run,
    )
    look = private.acting_after(overflow_origin.look_after_run)
    private.install(
        {
            private.CREATE_SESSION: private.acting_after(stamp_session),
            functions.MAKE_FUNCTION: compiled.rewriting,
            functions.CALL_IN_EAGER_MODE: functools.partial(
                call_sites.comparing_calls, first_called=notices.mention_function
            ),
            functions.RUN_IN_SESSION: lambda run: failures.raising(
                look(comparing_runs(run))
            ),
            graphs.CONVERT_TO_TFLITE: plugin.paused(),
            functions.SERVER_START: private.acting_before(workers.serve),
            **({private.CALL_FUNCTION: failures.raising} if config.strict else {}),
        }
    )


def _build_host() -> None:
    """Say what takes part in the rewriting of graphs, besides the pass."""
    from tf_amp.training import overflow_origin, scale_state

    def skipped_steps() -> int | None:
        known = scale_state.latest_state()
        if known is None or known.in_graph or not known.loss_scale.scales:
            return None
        return int(known.evaluate()["skipped_steps"])

    has_stamps = private.CREATE_OP in private.installed()
    host.build(
        dropped=overflow_origin.float32_nodes,
        passes=(
            host.Pass(
                "compiled",
                "calls compiled functions as prices prefer them",
                compiled.called_in_turn,
            ),
            host.Pass(
                "watch",
                "does not show where it overflows",
                overflow_origin.keeping_graph,
                WATCH,
            ),
            host.Pass(
                "clusters",
                "is not compiled by XLA",
                clusters.compiled_in_turn,
                STAMP,
            ),
        ),
        # Those that arrive have the settings of their first call then.
        without_stamps=(lambda: None) if has_stamps else settings_here,
        skipped_steps=skipped_steps,
    )
