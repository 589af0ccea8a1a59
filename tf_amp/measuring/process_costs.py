"""Measured costs of this process: one price list per device, one budget per setting.

They are read from the database when the first graph arrives, and shared by all graphs
from then on. Where a plan is to be a pure function of graph, settings and price list
(tuning off, determinism asked for, another device planned for), there is no tuner.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from grappler_pass.fork_safety import per_process, renewed_lock
from tf_amp import _tensorflow_private as private
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.measuring import progress
from tf_amp.measuring.budget import Budget, limits_of, process_age

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.costs.database.price_list import PriceList
    from grappler_pass.graph.shapes import Shapes
    from tf_amp.measuring.known_costs import KnownCosts
    from tf_amp.measuring.tuner import OnlineTuner

_lock = renewed_lock()
_Load = TypeVar("_Load", bound=Callable[..., Any])


def _once_per_process(load: _Load) -> _Load:
    """Load something once, and anew in a forked child.

    Graphs arrive on several threads at once; `functools.cache` alone would give each of
    them costs of its own, and keep the last.
    """
    cached = functools.cache(load)
    per_process(cached.cache_clear)

    @functools.wraps(load)
    def loaded(*args: Any) -> Any:
        with _lock:
            return cached(*args)

    return cast(_Load, loaded)


def prices_for(config: AmpConfig, device_type: str) -> PriceList | None:
    """Return what was measured on this device; None when planning for another one."""
    if config.device_profile is not None:
        return None
    return known_costs(config.cache_dir, device_type).prices


def tuner_for(
    config: AmpConfig,
    device_type: str,
    graph: Hashable | Callable[[], Hashable],
    graph_def: GraphDef | None = None,
    shapes: Callable[[], Shapes] = dict,
) -> OnlineTuner | None:
    """Return the tuner of one graph; None where nothing is to be measured.

    Args:
      config: says whether, and for how long.
      device_type: of the device that the graph runs on.
      graph: equal values share the time for one graph; a function is asked for it once
        time is needed.
      graph_def: by which later processes know the graph again; None: they do not.
      shapes: infers its static shapes, by which they do so as well.
    """
    budget = budget_of(config.tune)
    why = _why_refused(config)
    if budget is None or why:
        progress.note(progress.Refused(why))
        return None
    from tf_amp.measuring.known_costs import GraphLedger
    from tf_amp.measuring.tuner import OnlineTuner

    others = {device.device_type for device in devices.present_devices()}
    costs, *elsewhere = (
        known_costs(config.cache_dir, kind)
        for kind in (device_type, *sorted(others - {device_type}))
    )
    ledger = None if graph_def is None else GraphLedger(costs, graph_def, shapes)
    return OnlineTuner(costs, budget.allowance(graph, ledger), tuple(elsewhere))


def _why_refused(config: AmpConfig) -> str:
    """Say what forbids measuring; "" where nothing does."""
    if budget_of(config.tune) is None:
        return "tuning was switched off"
    if config.device_profile is not None:
        return f"plans are made for {config.device_profile}"
    if private.is_determinism_enabled():
        return "under enable_op_determinism plans may not change"
    return ""


def is_all_kept(cache_dir: pathlib.Path | None) -> bool:
    """Write what is not written yet, and return whether all of it could be."""
    kinds = {device.device_type for device in devices.present_devices()}
    known = [known_costs(cache_dir, kind).database for kind in sorted(kinds)]
    # A list, since each of them is to write what it can.
    return all([database is not None and database.flush() for database in known])


@_once_per_process
def known_costs(cache_dir: pathlib.Path | None, device_type: str) -> KnownCosts:
    """Return what this process knows of the costs of its devices of one type."""
    import tensorflow as tf

    from tf_amp.measuring.known_costs import KnownCosts

    key = devices.cost_key(devices.device_of_type(device_type))
    return KnownCosts.load(device_type, key, tf.__version__, cache_dir)


@_once_per_process
def budget_of(tune: str) -> Budget | None:
    """Return the time that this process has under a setting; None for "off"."""
    limits = limits_of(tune)
    return None if limits is None else Budget(limits, age=process_age())
