"""Which hooks of TensorFlow are taken, and by what.

`_tensorflow_private` names the hooks; `stamps` and `origins` say what is done in them.
Not to be called by several threads at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tf_amp import _tensorflow_private as private
from tf_amp import failures, rewriter
from tf_amp._tensorflow_private import calls, exports, functions, tracing, workers
from tf_amp.configuration.config import AmpConfig
from tf_amp.converting import stripping
from tf_amp.loss_scaling.protocol import LossScale
from tf_amp.overflow import origin as overflow_origin
from tf_amp.scopes import origins, stamps
from tf_amp.scopes import stack as scope_stack
from tf_amp.workers import jobs
from tf_amp.xla import functions as compiled

# Under strict settings; what was traced under them keeps them.
_RAISING = (private.CALL_FUNCTION, private.RUN_SESSION)


def install_marking(in_force: stamps.InForce) -> None:
    """Mark operations with what holds where they are made.

    Args:
      in_force: returns which settings hold for new operations of a graph.
    """

    def adopt(op: Any) -> None:
        stamps.adopt(op, tracing.traced_graph() or op.graph, in_force)

    def settings_here() -> str | None:
        return in_force(tracing.traced_graph()).settings

    install = private.install
    stamp = functools.partial(stamps.stamping, in_force=in_force)
    if not install(private.CREATE_OP, stamp):
        rewriter.use_without_stamps(settings_here)
    install(tracing.REPLICA_THREAD, scope_stack.inheriting)
    walk = functools.partial(origins.following, adopt=adopt)
    install(tracing.WALK_GRADIENT, walk)
    install(tracing.RECORD_GRADIENT, origins.recording)
    install(tracing.RECORD_CLOSURE, origins.remembering)
    replay = functools.partial(origins.replaying, adopt=adopt)
    install(tracing.REPLAY_GRADIENT, replay)
    install(exports.BUILD_META_GRAPH, stripping.stripping_built)
    install(exports.CREATE_META_GRAPH, stripping.stripping_created)
    install(exports.SAVE_BUILDER, stripping.stripping_saved)


def install_loss_scaling(current_config: Callable[[], AmpConfig | None]) -> None:
    """Scale losses where gradients are computed, and skip steps that overflow.

    Args:
      current_config: returns the configuration in force where it is called.
    """
    from tf_amp.checkpoints import installing
    from tf_amp.gradients import decorators as gradients
    from tf_amp.loss_scaling.choosing import NO_SCALING, loss_scale_for
    from tf_amp.workers import agreement, other_exchanges, sync_replicas

    def current_loss_scale() -> LossScale:
        config = current_config()
        loss_scale = loss_scale_for(config)
        if config is None or not loss_scale.scales:
            return loss_scale
        if other_exchanges.is_scaling_forbidden():
            return NO_SCALING
        agreement.check_once(config, wait=True)
        return loss_scale

    gradients.install(current_loss_scale)
    sync_replicas.install()
    installing.install()
    private.install(tracing.SETTLE_SESSION, overflow_origin.settling)


def install_rewriting(config: AmpConfig, stamp_graph: Callable[[Any], None]) -> None:
    """Hand graphs over to the pass.

    Args:
      config: whether failures are raised.
      stamp_graph: called with the graph of each Session that is made.

    Raises:
      ShimError: the compiled shim is missing or cannot be loaded.
    """
    from grappler_pass import plugin
    from tf_amp.tuning import compared_calls

    def stamping(create_session: Callable[..., None]) -> Callable[..., None]:
        return _stamping_sessions(create_session, stamp_graph)

    plugin.load(rewriter.rewrite_graph)
    private.install(private.CREATE_SESSION, stamping)
    private.install(functions.MAKE_FUNCTION, compiled.rewriting)
    private.install(calls.CALL_IN_EAGER_MODE, compared_calls.comparing_calls)
    private.install(calls.RUN_IN_SESSION, compared_calls.comparing_runs)
    private.install(exports.CONVERT_TO_TFLITE, _passing_graphs_through)
    private.install(workers.SERVER_START, _serving)
    if config.strict:
        for hook in _RAISING:
            private.install(hook, failures.raising)


def remove() -> None:
    """Undo all but what graphs need that were traced before, and still arrive."""
    comparing = (calls.CALL_IN_EAGER_MODE, calls.RUN_IN_SESSION)
    private.remove(kept=(*_RAISING, exports.CONVERT_TO_TFLITE, *comparing))


def _passing_graphs_through(convert: Callable[..., Any]) -> Callable[..., Any]:
    from grappler_pass import plugin

    @functools.wraps(convert)
    def convert_what_was_written(*args: Any, **kwargs: Any) -> Any:
        with plugin.paused():
            return convert(*args, **kwargs)

    return convert_what_was_written


def _serving(start: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(start)
    def note_and_start(server: Any) -> None:
        jobs.serve(server)
        start(server)

    return note_and_start


def _stamping_sessions(
    create_session: Callable[..., None], stamp_graph: Callable[[Any], None]
) -> Callable[..., None]:
    @functools.wraps(create_session)
    def create_session_of_stamped_graph(
        session: Any, *args: Any, **kwargs: Any
    ) -> None:
        create_session(session, *args, **kwargs)
        stamp_graph(session.graph)

    return create_session_of_stamped_graph
