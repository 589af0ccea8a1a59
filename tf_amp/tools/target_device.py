"""A device to plan for that need not be present, and graphs as they would run on it.

A graph is placed on the device and optimized by TensorFlow as for it. Where this build
of TensorFlow has no kernels for GPUs, the definitions of the ops say which types they
have there.
"""

from __future__ import annotations

import dataclasses

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel, DeviceProfile, ProfileError
from grappler_pass.graph import type_slots
from grappler_pass.pipeline import Settings
from tf_amp.compare import known_kernels as known
from tf_amp.config import devices, scope_registry
from tf_amp.config.amp_config import AmpConfig, checked_dtype
from tf_amp.errors import ConfigError
from tf_amp.rewriting import graph_settings
from tf_amp.rewriting.graph_settings import settings_under_xla
from tf_amp.tracing import grappler_preview

# TensorFlow chooses what it fuses by it.
_ARCHITECTURES = {"v100": "7.0", "t4": "7.5", "a100": "8.0"}
_NEWEST = "9.0"


@dataclasses.dataclass(frozen=True)
class Target:
    """A device by its profile, and the 16-bit type to plan with."""

    profile: DeviceProfile
    low_dtype: str

    @property
    def device_type(self) -> str:
        """The type that graphs are placed on while they are planned."""
        if self.profile.kind != "gpu":
            return "CPU"
        return "GPU" if type_slots.has_kernels_for("GPU") else type_slots.ABSENT_GPU

    @property
    def kernels(self) -> str:
        """Where it is looked up which ops can run in 16 bits."""
        if self.device_type in ("CPU", "GPU"):
            return f"the {self.device_type} kernels of this TensorFlow"
        return "the definitions of the ops (this TensorFlow has no GPU kernels)"

    def settings(self, config: AmpConfig, *, is_compiled: bool = False) -> Settings:
        """Return what the pass is given for every graph that is planned.

        If XLA compiles it, with prices for that.
        """
        graph_settings.check_config(config)
        model = CostModel(self.profile)
        kind = self.device_type
        models = {"CPU": model, kind: model}
        kernels = known.kernels_of_profile(self.profile)
        chosen = graph_settings.settings_with_models(
            config, self.low_dtype, models, device_type=kind, kernels=kernels
        )
        return settings_under_xla(chosen) if is_compiled else chosen

    def placed(self, graph_def: GraphDef) -> GraphDef:
        """Return a copy whose nodes name no device, and so run on this one."""
        return grappler_preview.without_devices(graph_def)

    def optimized(self, graph_def: GraphDef, fetched: tuple[str, ...]) -> GraphDef:
        """Return the graph as TensorFlow would leave it for this device."""
        shipped = _ARCHITECTURES.get(self.profile.name, _NEWEST)
        architecture = self.profile.data.get("capability", shipped)
        for_gpu = architecture if self.profile.kind == "gpu" else None
        return self.placed(
            grappler_preview.optimized_graph(graph_def, fetched, for_gpu)
        )


def target_of(device_profile: str | None, low_dtype: str | None = None) -> Target:
    """Return the target that the name or path of a profile stands for.

    None stands for what programs are planned for here: the GPU, or the CPU where there
    is none, unless the settings name another. Its 16-bit type is what suits the device
    by default. ConfigError names those there are.
    """
    chosen = checked_dtype(low_dtype) if low_dtype is not None else None
    if device_profile is None:
        kind = devices.device_of_type("GPU").device_type
        here = devices.choose(scope_registry.base_config(), kind)
        return Target(dict(here.profiles)[kind], chosen or here.low_dtype)
    try:
        profile = DeviceProfile.load(device_profile)
    except ProfileError as error:
        raise ConfigError(f"device_profile: {error}") from error
    profile = profile.with_tensor_float_32(devices.uses_tensor_float_32())
    return Target(profile, chosen or devices.profile_dtype(profile))
