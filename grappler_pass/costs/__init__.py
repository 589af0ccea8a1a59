"""Seconds of ops and casts on a device: profiles, roofline, and the cost model."""

from grappler_pass.costs.calls import (
    OpCall,
    Price,
    TensorSpec,
    attrs_from_node_def,
)
from grappler_pass.costs.device_profile import (
    DECISIVE_FLAGS,
    DeviceKey,
    DeviceProfile,
    ProfileError,
    calibrated_path,
    calibrated_profile,
    keep_profile,
    nearest_to_cpu,
    nearest_to_gpu,
    profile_for,
)
from grappler_pass.costs.model import CostModel

__all__ = [
    "DECISIVE_FLAGS",
    "CostModel",
    "DeviceKey",
    "DeviceProfile",
    "OpCall",
    "Price",
    "ProfileError",
    "TensorSpec",
    "attrs_from_node_def",
    "calibrated_path",
    "calibrated_profile",
    "keep_profile",
    "nearest_to_cpu",
    "nearest_to_gpu",
    "profile_for",
]
