"""From what the user asked for to what the pass is given, device by device.

The settings of a scope are made when its first graph arrives, since devices are not
looked at before that.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from grappler_pass.fork_safety import per_process
from tf_amp._tensorflow_private import functions, graphs, is_onednn_enabled
from tf_amp.config import devices
from tf_amp.config.amp_config import DEVICE_PROFILE, LOW_DTYPES, SAVE, AmpConfig
from tf_amp.config.scope_registry import RegisteredScope
from tf_amp.config.setting_values import ListEdit, checked_patterns
from tf_amp.config.workers import is_joint, peers
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code
from tf_amp.tracing import grappler_preview

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.costs import CostModel
    from grappler_pass.eligibility.kernels import Kernels
    from grappler_pass.graph.op_lists import OpLists
    from grappler_pass.pipeline import Settings
    from grappler_pass.planning.draft import Layouts


def settings_for(
    scope: RegisteredScope, graph_def: Any, device_type: str | None = None
) -> Settings:
    """Return the settings of a scope for a graph, by the devices that it runs on.

    `device_type` is that of the home of a graph that XLA compiles; else None.
    """
    from tf_amp.compare.verdicts import own_steps_for

    kind = device_type or target_device_type(graph_def)
    chosen = settings_from_config(scope.rewriting, kind)
    chosen = with_checks(chosen, scope.config, graph_def)
    own_steps = own_steps_for(scope.config, kind)
    chosen = dataclasses.replace(chosen, own_steps=own_steps)
    return settings_with_steps(chosen) if device_type else chosen


def with_checks(chosen: Settings, config: AmpConfig, graph_def: Any) -> Settings:
    """Return settings by which kernels are run before a plan of a graph uses them.

    Of workers that train in step the chief checks for all, so that they have one plan.
    """
    from tf_amp.compare import known_kernels as known

    kernels, others = chosen.kernels, peers()
    if not isinstance(kernels, known.KnownKernels):
        return chosen
    if others and not others.is_chief and is_joint(graph_def):
        kernels = dataclasses.replace(kernels, outcomes={})
    else:
        kernels = known.with_checks(kernels, config)
    return dataclasses.replace(chosen, kernels=kernels)


def target_device_type(graph_def: Any) -> str:
    """Return "GPU" if a node is or may be placed on one, else "CPU"."""
    if all(d.device_type == "CPU" for d in devices.present_devices()):
        return "CPU"
    places = {node.device for node in graph_def.node}
    return "GPU" if "" in places or any("GPU" in p for p in places) else "CPU"


def settings_from_config(config: AmpConfig, device_type: str) -> Settings:
    """Return the pass's settings for one configuration on one type of device.

    Raises:
      ConfigError: as for `check_config`.
    """
    return made_settings(config, device_type, devices.uses_tensor_float_32())


@functools.lru_cache(maxsize=64)
def made_settings(config: AmpConfig, device_type: str, _: bool) -> Settings:
    """Return the settings, made once; prices depend on the flag as well."""
    from grappler_pass.costs import CostModel
    from tf_amp.compare import known_kernels as known
    from tf_amp.compare.verdicts import learned_for

    check_config(config)
    choice = devices.choose(config, device_type)
    if freed := edited_lists(choice.low_dtype, config.list_edits).freed:
        Code.UNCHECKED_LISTS.warn_once(
            f"Your op lists let {', '.join(sorted(freed))} compute in 16 bits wherever "
            "they are; what rounding does to their results is not checked."
        )
    models = {
        kind: CostModel(profile, learned_for(config, kind))
        for kind, profile in choice.profiles
    }
    if config.device_profile is None:
        kernels = known.kernels_here(config)
    else:
        kernels = known.kernels_of_profile(choice.profiles[0][1])
    chosen = settings_with_models(
        config, choice.low_dtype, models, device_type=device_type, kernels=kernels
    )
    capability = devices.device_of_type("GPU").capability
    return dataclasses.replace(
        chosen, layouts=layouts_for(chosen.low_dtype, capability)
    )


def settings_with_models(
    config: AmpConfig,
    low_dtype: str,
    models: Mapping[str, CostModel],
    *,
    device_type: str,
    kernels: Kernels,
) -> Settings:
    """Return what a configuration says of rewrites to one type at given prices.

    What names no device runs on one of the given type, if there is a kernel for it.
    """
    from grappler_pass.graph.device_types import Home
    from grappler_pass.pipeline import Settings

    return Settings(
        low_dtype=low_dtype,
        lists=edited_lists(low_dtype, config.list_edits),
        models=models,
        opt_level=config.opt_level,
        exclude=config.exclude,
        tie=config.tie,
        saves_memory=config.memory == SAVE,
        ranges=_unsafe_nodes(config.ranges, low_dtype),
        fusions=config.fuse,
        home=Home(device_type),
        # Where it is unknown nothing is left to it.
        onednn=bool(is_onednn_enabled()),
        kernels=kernels,
    )


# What a forked child knows of prices is read again.
per_process(made_settings.cache_clear)


def _unsafe_nodes(
    path: pathlib.Path | None, low_dtype: str
) -> tuple[tuple[str, str], ...]:
    """Return the nodes that a file of ranges keeps in float32, with the reasons."""
    if path is None:
        return ()
    from tf_amp.config.ranges import Ranges

    return tuple(Ranges.load(path).unsafe(low_dtype).items())


def edited_lists(low_dtype: str, edits: Iterable[ListEdit]) -> OpLists:
    """Return the op lists of a type with the user's edits.

    An op added to one list leaves the list it was in.

    Raises:
      ConfigError: TensorFlow has no op of a name that is added or removed.
      OpListError: an op would be in two lists.
    """
    from grappler_pass._tensorflow_private import op_def
    from grappler_pass.graph.op_lists import OpLists

    lists = OpLists.for_dtype(low_dtype)
    add: dict[str, list[str]] = {}
    remove: dict[str, list[str]] = {}
    for edit in edits:
        target = add if edit.verb == "add" else remove
        for op in edit.ops:
            if op_def(op) is None:
                raise ConfigError(
                    f"{edit.asked_by}: received {op!r} for the {edit.list_name} list; "
                    "allowed are ops of this TensorFlow. Check its spelling."
                )
            was_in = lists.list_of(op)
            if edit.verb == "remove" and was_in != edit.list_name:
                continue
            target.setdefault(edit.list_name, []).append(op)
            if edit.verb == "add" and was_in not in (None, edit.list_name):
                remove.setdefault(str(was_in), []).append(op)
    return lists.edited(add=add, remove=remove)


def check_config(config: AmpConfig) -> None:
    """Refuse now what would fail at the first graph.

    Raises:
      ConfigError: the profile does not exist, an op is unknown or in two lists, or a
        pattern is no regular expression.
    """
    from grappler_pass.costs import DeviceProfile, ProfileError

    checked_patterns(config.exclude)
    _unsafe_nodes(config.ranges, LOW_DTYPES[0])
    try:
        for low_dtype in LOW_DTYPES:
            edited_lists(low_dtype, config.list_edits)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if config.device_profile is None:
        return
    try:
        DeviceProfile.load(config.device_profile)
    except ProfileError as error:
        raise ConfigError(f"device_profile ({DEVICE_PROFILE}): {error}") from error


def settings_under_xla(chosen: Settings) -> Settings:
    """Return settings that price a graph as XLA compiles it.

    What steps have taught about TensorFlow's own kernels says nothing of XLA's: prices
    are those of the profile. Nor does an elementwise op in 16 bits save memory there,
    for which it would be worth being slower: what XLA fuses is not held.
    """
    from grappler_pass.costs.model import compiled_models

    home = chosen.home and chosen.home._replace(is_compiled=True)
    models = compiled_models(chosen.models)
    return dataclasses.replace(
        chosen,
        models=models,
        home=home,
        own_steps=None,
        tie=0.0,
        saves_memory=False,
        fuses=True,
    )


def settings_with_steps(chosen: Settings) -> Settings:
    """Return settings under XLA that let steps decide where prices are in doubt."""
    from tf_amp.compare.verdicts import StepVerdicts

    own_steps = chosen.own_steps
    if isinstance(own_steps, StepVerdicts):
        own_steps = own_steps._replace(is_alone=True)
    return dataclasses.replace(settings_under_xla(chosen), own_steps=own_steps)


def device_type_of_compiled() -> str:
    """Return the type of device that a function runs on which is made, or called, here.

    Not known is where else it will be called.
    """
    if all(device.device_type == "CPU" for device in devices.present_devices()):
        return "CPU"
    return "CPU" if functions.device_type_in_force() == "CPU" else "GPU"


# From these compute capabilities on TensorFlow has the convolutions of a type read
# channels last (generic_layout_optimizer.cc).
_CHANNELS_LAST = {"float16": (7, 0), "bfloat16": (8, 0)}


def layouts_for(low_dtype: str, capability: tuple[int, int] | None) -> Layouts | None:
    """Return what chooses layouts for a type; None where they stay as they are.

    Args:
      low_dtype: "bfloat16" or "float16".
      capability: compute capability of the oldest GPU; None: there is no GPU.
    """
    if capability is None or capability < _CHANNELS_LAST[low_dtype]:
        return None
    architecture = "{}.{}".format(*capability)

    def laid_out(graph_def: GraphDef, kept: tuple[str, ...]) -> GraphDef | None:
        """Return a graph in the layouts that TensorFlow chooses; None: it fails."""
        from tensorflow.core.protobuf.config_pb2 import ConfigProto

        cluster = graphs.cluster_of(architecture)
        if cluster is None:
            return None
        request, config = grappler_preview.request_for(
            grappler_preview.with_bodies(graph_def), kept, ConfigProto()
        )
        config.graph_options.rewrite_options.optimizers.append("layout")
        return grappler_preview.run_grappler(
            request, config, cluster, "layouts stay unchanged"
        )

    return laid_out
