"""What differs between tf-amp's plan of today and how published figures were obtained.

They were obtained with the lists of TensorFlow 1.15, which convert all they allow,
unpriced. Where XLA was off, convolutions got their images channels first, which
cuDNN turns around before and after it computes them on a V100's tensor cores: a read
and a write of what goes in and of what comes out.

References:
    tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h of NVIDIA's
    TensorFlow 1.15; NVIDIA, Convolutional Layers User's Guide (tensor layouts).
"""

import dataclasses
import math

from grappler_pass.costs.op_classes import CONVOLUTIONS
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.view import Node, Port
from grappler_pass.planning.draft import Draft, Settings
from tf_amp.config.amp_config import AmpConfig
from tf_amp.tools.target_device import Target

_IMAGE_RANK = 4
_LOW_BYTES = 2
_TURNS = 2
_DENIED = ("Log", "Log1p", "LogSoftmax", "Softmax")
LISTS = OpLists.for_dtype("float16").edited(
    add={"deny": _DENIED}, remove={"infer": _DENIED, "clear": ("Unpack",)}
)


@dataclasses.dataclass(frozen=True)
class ListedTarget(Target):
    """A device whose graphs are planned by the lists of TensorFlow 1.15 alone.

    Nothing but types is rewritten.
    """

    def settings(self, config: AmpConfig, *, is_compiled: bool = False) -> Settings:
        """Return settings under which all that is eligible is converted."""
        own = super().settings(config, is_compiled=is_compiled)
        return dataclasses.replace(own, lists=LISTS, opt_level="O2", fusions=())


def layout_seconds(draft: Draft) -> float:
    """Return what turning images around takes in a planned step without XLA."""
    roofline = draft.settings.models["CPU"].profile.roofline
    rate = roofline.bytes_per_second["float32"]
    low = [node for node in draft.view.nodes if _is_low_convolution(draft, node)]
    moved = 2.0 * _LOW_BYTES * sum(_image_elements(draft, node) for node in low)
    return moved / rate + len(low) * _TURNS * roofline.overhead_seconds


def _is_low_convolution(draft: Draft, node: Node) -> bool:
    slots = draft.slots.slots_of[node.index]
    return node.op in CONVOLUTIONS and any(draft.low[slot] for slot in slots)


def _image_elements(draft: Draft, node: Node) -> int:
    """Return the elements of the two images that a convolution has to do with."""
    ports = [*node.inputs, Port(node.index, 0)]
    filters = 1 if CONVOLUTIONS[node.op] != "filter_gradient" else len(ports) - 1
    return sum(_elements(draft, p) for i, p in enumerate(ports) if i != filters)


def _elements(draft: Draft, port: Port) -> int:
    shape = known_shape(draft.shapes, draft.view, port)
    sizes = [size for size in shape or () if size is not None]
    return math.prod(sizes) if len(sizes) == _IMAGE_RANK else 0
