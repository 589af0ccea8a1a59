"""Two unlike devices, and the link between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from grappler_pass.costs import CostModel


@dataclasses.dataclass(frozen=True)
class Site:
    """Two devices, by names like "GPU:0", with a model each, and what joins them.

    Attributes:
      home: where the graph runs as given.
      other: what parts may move to.
      models: of both.
      bytes_per_second: of large tensors that move between them.
      seconds_per_transfer: of the smallest.
    """

    home: str
    other: str
    models: Mapping[str, CostModel]
    bytes_per_second: float
    seconds_per_transfer: float

    def transfer_seconds(self, tensor_bytes: int) -> float:
        """Return what moving a tensor to the other device takes."""
        return self.seconds_per_transfer + tensor_bytes / self.bytes_per_second
