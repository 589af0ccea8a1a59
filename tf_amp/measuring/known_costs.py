"""What this process knows of one device's costs, and where it is kept."""

from __future__ import annotations

import atexit
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from absl import logging

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.costs.database.price_list import Measured, PriceList
from grappler_pass.costs.database.records import CostRow, Spending, better_supported
from grappler_pass.costs.errors import SURE, measured_error
from tf_amp.measuring.fingerprint import fingerprint_of_graph

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.costs.database.price_database import CostDatabase
    from grappler_pass.graph.shapes import Shapes


@dataclasses.dataclass(frozen=True)
class KnownCosts:
    """One device's measured prices.

    Attributes:
      device_type: "CPU" or "GPU".
      key: names the device in the database.
      tensorflow: the version that the prices hold for.
      prices: shared by all cost models of the device.
      database: None where nothing is kept.
      failed: (key of a probe, dtype) that could not be measured.
      measured: those that this process has measured, well or badly.
      unkept: rows that are in use and not written yet.
      verdicts: by fingerprint of the two graphs of a comparison, whether 16 bits are
        faster; None: nothing is remembered of them.
    """

    device_type: str
    key: str
    tensorflow: str
    prices: PriceList = dataclasses.field(default_factory=PriceList)
    database: CostDatabase | None = None
    failed: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    measured: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    unkept: list[Measured] = dataclasses.field(default_factory=list)
    verdicts: dict[str, bool | None] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(
        cls, device_type: str, key: str, tensorflow: str, cache_dir: pathlib.Path | None
    ) -> KnownCosts:
        """Read what was kept in a folder; start from nothing without one."""
        if cache_dir is None:
            return cls(device_type, key, tensorflow)
        try:
            from grappler_pass.costs.database.price_database import (
                CostDatabase,
                costs_path,
            )
        except ModuleNotFoundError as error:
            # Some builds of Python lack SQLite.
            logging.warning("measured costs are not kept: %s", error)
            return cls(device_type, key, tensorflow)
        database = CostDatabase(costs_path(cache_dir))
        atexit.register(database.flush)
        prices = database.load(key, tensorflow)
        return cls(device_type, key, tensorflow, prices, database)

    def is_known(self, key: str, dtype: str, *, surely: bool = False) -> bool:
        """Return whether there is a price of a probe, or none to be had.

        `surely`: one that runs far apart have left unsure does not count, but once this
        process has measured it: another try would end alike.
        """
        if (key, dtype) in self.failed or (key, dtype) in self.measured:
            return True
        sample = self.prices.get(key, dtype)
        if sample is None:
            return False
        return not surely or measured_error(sample.spread) < SURE

    @property
    def folder(self) -> pathlib.Path | None:
        """Where the database lies, if there is one."""
        return None if self.database is None else self.database.path.parent

    def refresh(self) -> None:
        """Take over what other processes have measured since."""
        if self.database is not None:
            self._take(self.database.load_new(self.key, self.tensorflow))

    def add(self, rows: Sequence[Measured]) -> None:
        """Use rows from now on, of two the better; the next `keep` writes them."""
        self._take(rows)
        self.measured.update((row.probe.key, row.dtype) for row in rows)
        self.unkept.extend(rows)

    def correct(self, rows: Sequence[Measured]) -> None:
        """Use rows of the running job in place of what was measured outside of it."""
        self.prices.add(rows)
        self.measured.update((row.probe.key, row.dtype) for row in rows)
        if self.database is not None:
            self.database.correct(self._of_device(rows))

    def _take(self, rows: Iterable[Measured]) -> None:
        """Use the rows that are better than what is known."""
        self.prices.add([row for row in rows if self._is_better(row)])

    def _is_better(self, row: Measured) -> bool:
        known = self.prices.get(row.probe.key, row.dtype)
        return known is None or better_supported(known, row.sample) is not known

    def keep(self) -> None:
        """Write what is new to the database, if there is one; never raises."""
        if self.unkept and self.database is not None:
            self.database.keep(self._of_device(self.unkept))
        self.unkept.clear()

    def _of_device(self, rows: Iterable[Measured]) -> list[CostRow]:
        return [CostRow(self.key, self.tensorflow, row) for row in rows]


@dataclasses.dataclass(frozen=True)
class GraphLedger:
    """What finding out about one graph has taken, remembered between processes.

    One of other shapes is another graph: what takes long there need not take long here.
    Graph and shapes are looked at only if something is left to be found out.
    """

    costs: KnownCosts
    graph_def: GraphDef
    shapes: Callable[[], Shapes] = dict

    def spent(self) -> float:
        """Return the seconds that earlier processes have spent on the graph."""
        database = self.costs.database
        return 0.0 if database is None else database.spent(*self._key)

    def keep(self, seconds: float) -> None:
        """Remember what it has taken, earlier processes included; never raises."""
        if self.costs.database is not None:
            self.costs.database.keep([Spending(*self._key, seconds)])

    @cached_attribute
    def _key(self) -> tuple[str, str, str]:
        fingerprint = fingerprint_of_graph(self.graph_def, self.shapes())
        return self.costs.key, self.costs.tensorflow, fingerprint
