"""Low-precision and float32 parts of a graph on devices that suit them.

    affinity = tf_amp.placement.precision_affinity({"GPU:0": "t4", "GPU:1": "a100"})
    placed = affinity.place(graph_def, ["logits"])  # a given graph
    with affinity:  # all graphs that first run within
        train_step(batch)

The graph as it would run is divided, and so are those that mixed precision makes of it
at the prices of either device. The cheapest is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.costs import CostModel, DeviceProfile, ProfileError
from grappler_pass.garbage import collection_paused
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.prices import TRANSFER_BYTES_PER_SECOND
from tf_amp.errors import ConfigError
from tf_amp.placement.cut import Placed, Site, fixed_nodes, place_graph
from tf_amp.placement.named_devices import checked_devices, short_name
from tf_amp.rewriting import graph_settings, host
from tf_amp.tools.explanation import config_for, traced_graph

# A send, a receive and the wait for it; what a copy between devices takes at least.
TRANSFER_SECONDS = 20e-6
# Of the step, that a placement must gain by default.
_LEAST_SHARE = 0.02

Profiles = Mapping[str, str | DeviceProfile]


class PrecisionAffinity:
    """Two devices to divide graphs between: given ones, or those run within."""

    def __init__(self, site: Site, margin: float) -> None:
        """Take checked devices; `precision_affinity` makes them."""
        self._site = site
        self._margin = margin
        self._placed: list[Placed] = []

    @property
    def placed(self) -> tuple[Placed, ...]:
        """How each graph that ran within was divided, or left whole, oldest first."""
        return tuple(self._placed)

    def place(self, graph_def: GraphDef, fetches: Iterable[str]) -> Placed:
        """Return a graph in mixed precision and divided, where that should pay.

        Args:
          graph_def: not modified; its nodes run on the first device, unless they name
            another.
          fetches: names of the nodes whose outputs are read.

        Raises:
          ValueError: a fetch is not in the graph.
        """
        with collection_paused():
            _, kept, name = traced_graph(graph_def, (), {}, tuple(fetches))
            feed = (n.name for n in graph_def.node if n.op.startswith("Placeholder"))
            item = Item(fetch=kept, feed=tuple(feed))
            shapes = shapes_from_graph_def(graph_def)
            chosen = graph_settings.settings_from_config(config_for(graph_def), "CPU")
            chosen = dataclasses.replace(chosen, home=self._site.home_type)
            return self._cheapest(graph_def, (), item, shapes, chosen, name)[0]

    def __enter__(self) -> PrecisionAffinity:
        """Divide every graph that mixed precision reaches from now on."""
        host.current().placers.append(self._place_rewrite)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave further graphs where they are; those that have run stay divided."""
        host.current().placers.remove(self._place_rewrite)

    def _place_rewrite(
        self, graph_def: Any, rewrite: Rewrite, item: Item, shapes: Shapes, chosen: Any
    ) -> Rewrite:
        """Return the rewrite to run instead of a given one."""
        if rewrite.plan is None:
            return rewrite
        with collection_paused():
            placed, best = self._cheapest(
                graph_def, (rewrite,), item, shapes, chosen, rewrite.plan.graph
            )
        self._placed.append(placed)
        logging.info("%s: %s", rewrite.plan.graph, placed)
        return best if placed.moved else rewrite

    def _cheapest(
        self,
        graph_def: Any,
        rewrites: tuple[Rewrite, ...],
        item: Item,
        shapes: Shapes,
        chosen: Settings,
        name: str,
    ) -> tuple[Placed, Rewrite]:
        """Divide the graph as it is rewritten, and as either device would have it."""
        own = self._rewrites(graph_def, item, shapes, chosen, name)
        candidates = [*rewrites, *own]
        # Of those that leave the graph as it is one will do.
        alike = {id(each.graph_def): each for each in reversed(candidates)}
        rows = [
            (place_graph(each.graph_def, item, shapes, self._site, self._margin), each)
            for each in alike.values()
        ]
        whole = min(placed.seconds_before for placed, _ in rows)
        placed, best = min(rows, key=lambda row: row[0].seconds_after)
        placed = dataclasses.replace(placed, seconds_before=whole)
        if placed.moved and placed.seconds_after > whole * (1.0 - self._margin):
            placed, best = min(rows, key=lambda row: row[0].seconds_before)
            placed = dataclasses.replace(
                placed, graph_def=best.graph_def, moved=(), seconds_after=whole
            )
        plan = best.plan or candidates[0].plan
        changed = placed.graph_def is not graph_def
        return placed, Rewrite(placed.graph_def, plan, changed)

    def _rewrites(
        self, graph_def: Any, item: Item, shapes: Shapes, chosen: Settings, name: str
    ) -> list[Rewrite]:
        """Rewrite a graph at the prices of either device.

        For the other one also with all in float32 that cannot move there, if any of it
        is in 16 bits.
        """

        def rewritten(given: Item, *devices: str) -> list[Rewrite]:
            return pipeline.optimize_at_each(
                graph_def,
                given,
                [priced_at[device] for device in devices],
                shapes=lambda: shapes,
                name=name,
            )

        home, other = self._site.home, self._site.other
        # Settings that believe one model, and nothing else.
        priced_at = {
            device: dataclasses.replace(
                chosen, models={"CPU": model, "GPU": model}, own_steps=None, memory=None
            )
            for device, model in self._site.models.items()
        }
        found = rewritten(item, home, other)
        plan = found[1].plan
        rows = plan.decisions if plan else ()
        low = frozenset(row.slot.node for row in rows if row.is_low)
        fixed = fixed_nodes(graph_def, item, self._site) if low else low
        if fixed & low:
            stays = tuple((node, f"it stays on {home}") for node in sorted(fixed))
            kept = dataclasses.replace(item, excluded=(*item.excluded, *stays))
            found += rewritten(kept, other)
        return found


def precision_affinity(
    devices: Profiles,
    *,
    bytes_per_second: float = TRANSFER_BYTES_PER_SECOND,
    seconds_per_transfer: float = TRANSFER_SECONDS,
    margin: float = _LEAST_SHARE,
) -> PrecisionAffinity:
    """Return a divider of graphs between two heterogeneous devices, where that pays.

    Args:
      devices: two names, each with its profile (the name of a shipped one, a path, or a
        `DeviceProfile`): first the device that graphs run on without this, then the
        one that parts may move to.
      bytes_per_second: of the link between them.
      seconds_per_transfer: what a transfer takes at least.
      margin: share of the step that must be gained.

    Raises:
      ConfigError: there are not two devices, one is not there, a profile is unknown, or
        a number makes no sense.
    """
    if len(devices) != 2:
        raise ConfigError(
            f"devices: received {len(devices)} of them ({', '.join(devices)}); give "
            "two, each with a profile."
        )
    if not (bytes_per_second > 0.0 and seconds_per_transfer >= 0.0):
        raise ConfigError(
            f"bytes_per_second: received {bytes_per_second!r}, seconds_per_transfer: "
            f"received {seconds_per_transfer!r}; allowed are positive numbers."
        )
    if not 0.0 <= margin < 1.0:
        raise ConfigError(f"margin: received {margin!r}; allowed are 0 to below 1.")
    home, other = map(short_name, checked_devices(tuple(devices)))
    try:
        profiles = [
            each if isinstance(each, DeviceProfile) else DeviceProfile.load(each)
            for each in devices.values()
        ]
    except ProfileError as error:
        raise ConfigError(f"devices: {error}") from error
    models = dict(zip((home, other), map(CostModel, profiles), strict=True))
    site = Site(home, other, models, bytes_per_second, seconds_per_transfer)
    return PrecisionAffinity(site, margin)
