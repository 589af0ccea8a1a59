"""Mixed precision by the program's own word.

TensorFlow is imported by the calls, not with the names: a program may still configure
it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tf_amp.config.amp_config import (
    AmpConfig,
    Compile,
    LowDtype,
    Memory,
    OnOff,
    OptLevel,
    checked_settings,
)
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import LossScaleWord
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan

Lists = Mapping[str, Mapping[str, Iterable[str]]]


def enable(
    dtype: LowDtype | None = None,
    *,
    opt_level: OptLevel | None = None,
    lists: Lists | None = None,
    device_profile: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    strict: bool | None = None,
    exclude: Iterable[Any] | None = None,
    tune: OnOff | None = None,
    fuse: OnOff | str | Iterable[str] | None = None,
    loss_scale: LossScale | float | LossScaleWord | str | None = None,
    ranges: str | os.PathLike[str] | None = None,
    verbose: bool | None = None,
    check: bool | None = None,
    memory: Memory | None = None,
    compile: Compile | None = None,
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
      fuse: names of fusions, "on" (default) or "off".
      loss_scale: a loss scale, a number or words for one, see loss scaling, whatever
        the type; by default "dynamic" for float16 and "none" for bfloat16.
      ranges: file from `tf-amp ranges`; what left the safe range stays float32.
      verbose: say on stderr what has become of the first graph, and the like.
      check: run 16-bit kernels of kinds that were found wrong before they are used.
      memory: "save" lets steps take a little longer to hold less; default "speed".
      compile: whether the program's own steps may choose that XLA compiles parts of a
        function ("clusters"), or parts or all of it ("on"); "off" by default.

    Raises:
      ConfigError: a setting is unknown, or two contradict each other.
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      ShimError: the compiled shim is missing or cannot be loaded.
    """
    # Its arguments have the names of settings.
    settings = checked_settings(**locals())
    check_tensorflow()
    config = dataclasses.replace(AmpConfig.from_env(), enabled=True, **settings)
    from tf_amp.runtime import switch

    switch.switch_on(config)
    switch.watch_eager_code()


init = enable


def disable() -> None:
    """Leave alone what is traced from now on, and undo the patches of TensorFlow.

    Functions traced while it was enabled keep their settings. Scopes that are entered
    at the time hold until they are left.
    """
    check_tensorflow()
    from tf_amp.runtime import switch

    switch.switch_off()


def is_enabled() -> bool:
    """Tell whether functions traced now will be rewritten."""
    check_tensorflow()
    from tf_amp.tracing.stamps import current_config

    return current_config() is not None


def plans() -> tuple[Plan, ...]:
    """Return the plans applied in this process, oldest first, the last 256 at most.

    They say what a step holds where something showed them as they were made, too: a
    folder in TF_AMP_LOG, a callback, or a log at INFO. Those of `explain` always do.
    """
    from tf_amp.rewriting import host

    return tuple(host.current().plans)
