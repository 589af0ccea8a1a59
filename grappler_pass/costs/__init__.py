"""Seconds of ops and casts on a device: profiles, roofline, and the cost model."""

from grappler_pass.costs.calls import OpCall as OpCall
from grappler_pass.costs.calls import Price as Price
from grappler_pass.costs.calls import TensorSpec as TensorSpec
from grappler_pass.costs.calls import attrs_from_node_def as attrs_from_node_def
from grappler_pass.costs.device_profile import DECISIVE_FLAGS as DECISIVE_FLAGS
from grappler_pass.costs.device_profile import DeviceKey as DeviceKey
from grappler_pass.costs.device_profile import DeviceProfile as DeviceProfile
from grappler_pass.costs.device_profile import GpuKey as GpuKey
from grappler_pass.costs.device_profile import Key as Key
from grappler_pass.costs.device_profile import ProfileError as ProfileError
from grappler_pass.costs.device_profile import calibrated_path as calibrated_path
from grappler_pass.costs.device_profile import calibrated_profile as calibrated_profile
from grappler_pass.costs.device_profile import keep_profile as keep_profile
from grappler_pass.costs.device_profile import nearest_to as nearest_to
from grappler_pass.costs.device_profile import nearest_to_cpu as nearest_to_cpu
from grappler_pass.costs.device_profile import nearest_to_gpu as nearest_to_gpu
from grappler_pass.costs.device_profile import profile_for as profile_for
from grappler_pass.costs.model import CostModel as CostModel
