"""Two unlike devices, and what lies between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from grappler_pass.costs import CostModel


@dataclasses.dataclass(frozen=True)
class Link:
    """What moving a tensor between the two devices takes.

    Attributes:
      bytes_per_second: of large tensors.
      seconds_per_transfer: of the smallest.
    """

    bytes_per_second: float
    seconds_per_transfer: float

    def seconds(self, tensor_bytes: int) -> float:
        """Return the seconds of one tensor."""
        return self.seconds_per_transfer + tensor_bytes / self.bytes_per_second


@dataclasses.dataclass(frozen=True)
class Site:
    """Two devices, by names like "GPU:0", with a model each, and what joins them.

    Attributes:
      home: where the graph runs as given.
      other: what parts may move to.
      models: of both.
      link: between them.
    """

    home: str
    other: str
    models: Mapping[str, CostModel]
    link: Link
