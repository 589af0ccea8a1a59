"""Which hooks of TensorFlow are taken, and by what.

`_tensorflow_private` names the hooks; `stamps` says what is done where operations
are made. Not to be called by several threads at once.
"""

from __future__ import annotations

import functools
from typing import Any

from tf_amp import _tensorflow_private as private
from tf_amp._tensorflow_private import functions, graphs
from tf_amp._tensorflow_private.workers import SERVER_START
from tf_amp.config import workers
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.devices import NO_SCALING, loss_scale_for
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.rewriting import (
    agreement,
    arriving_graphs,
    compiled,
    failures,
    host,
    scaled_losses,
    stripping,
)
from tf_amp.tracing import stamps
from tf_amp.tracing.stamps import current_config, settings_here, stamp_graph


def install_marking() -> None:
    """Mark operations with what holds where they are made."""
    stamps.install_hooks()
    install = private.install
    install(graphs.BUILD_META_GRAPH, stripping.stripping_built)
    install(graphs.CREATE_META_GRAPH, stripping.stripping_created)
    install(graphs.SAVE_BUILDER, stripping.stripping_saved)


def install_loss_scaling() -> None:
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


def install_rewriting(config: AmpConfig) -> None:
    """Hand graphs over to the pass; under strict settings failures are raised.

    Raises:
      ShimError: the compiled shim is missing or cannot be loaded.
    """
    from grappler_pass import plugin
    from tf_amp.compare import call_sites
    from tf_amp.rewriting import notices
    from tf_amp.training import overflow_origin

    _build_host()
    plugin.load(arriving_graphs.rewrite_graph)
    private.install(private.CREATE_SESSION, private.acting_after(_stamp_session))
    private.install(functions.MAKE_FUNCTION, compiled.rewriting)
    comparing_calls = functools.partial(
        call_sites.comparing_calls, first_called=notices.mention_function
    )
    private.install(functions.CALL_IN_EAGER_MODE, comparing_calls)
    comparing_runs = functools.partial(
        call_sites.comparing_runs,
        times_changed=overflow_origin.times_returned,
        first_called=notices.mention_run,
    )
    look = private.acting_after(overflow_origin.look_after_run)
    private.install(
        functions.RUN_IN_SESSION,
        lambda run: failures.raising(look(comparing_runs(run))),
    )
    private.install(graphs.CONVERT_TO_TFLITE, plugin.paused())
    private.install(SERVER_START, private.acting_before(workers.serve))
    if config.strict:
        private.install(private.CALL_FUNCTION, failures.raising)


def _build_host() -> None:
    """Say what takes part in the rewriting of graphs, besides the pass."""
    from tf_amp.training import overflow_origin

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
                "lighten",
                "keeps a Switch in front of each variable",
                scaled_losses.with_light_branches,
            ),
            host.Pass(
                "second try",
                "leaves gradients that overflow as they are",
                scaled_losses.with_second_tries,
            ),
            host.Pass(
                "watch",
                "does not show where it overflows",
                overflow_origin.keeping_graph,
            ),
        ),
        # Those that arrive have the settings of their first call then.
        without_stamps=(lambda: None) if has_stamps else settings_here,
        skipped_steps=_skipped_steps,
    )


def _skipped_steps() -> int | None:
    from tf_amp.training import scale_state

    known = scale_state.latest_state()
    if known is None or known.in_graph or not known.loss_scale.scales:
        return None
    return int(known.evaluate()["skipped_steps"])


def remove() -> None:
    """Undo all but what graphs need that were traced before, and still arrive."""
    from tf_amp.compare import call_sites

    kept = [private.CALL_FUNCTION, functions.RUN_IN_SESSION, graphs.CONVERT_TO_TFLITE]
    if call_sites.decide_calls():
        kept.append(functions.CALL_IN_EAGER_MODE)
    private.remove(kept)


def _stamp_session(result: None, session: Any, *args: Any, **kwargs: Any) -> None:
    stamp_graph(session.graph)
