"""Prices and budgets are shared in a process, where anything is to be measured."""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import dataclasses
import pathlib
import threading
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import config as framework_config

from tf_amp.config.amp_config import AmpConfig
from tf_amp.measuring import budget, process_costs
from tf_amp.measuring.known_costs import KnownCosts


def test_there_is_no_tuner_where_plans_must_not_change(tmp_path: pathlib.Path) -> None:
    budgeted = AmpConfig(cache_dir=tmp_path)
    assert process_costs.tuner_for(budgeted, "CPU", "graph") is not None
    off = dataclasses.replace(budgeted, tune="off")
    elsewhere = dataclasses.replace(budgeted, device_profile="v100")
    assert process_costs.tuner_for(off, "CPU", "graph") is None
    assert process_costs.tuner_for(elsewhere, "CPU", "graph") is None
    assert process_costs.prices_for(elsewhere, "CPU") is None
    tf.config.experimental.enable_op_determinism()
    try:
        assert process_costs.tuner_for(budgeted, "CPU", "graph") is None
    finally:
        framework_config.disable_op_determinism()
    assert process_costs.tuner_for(budgeted, "CPU", "graph") is not None


def test_prices_and_budget_are_shared_by_graphs_that_come_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work = threading.Barrier(2)

    def slowed(function: Any) -> Any:
        """Return a function that two threads leave together, if both are let in."""

        def wait_and_call(*given: Any) -> Any:
            with contextlib.suppress(threading.BrokenBarrierError):
                at_work.wait(0.3)
            return function(*given)

        return wait_and_call

    monkeypatch.setattr(KnownCosts, "load", slowed(KnownCosts.load))
    monkeypatch.setattr(budget, "process_age", slowed(budget.process_age))
    config = AmpConfig(cache_dir=tmp_path, tune="budget:7.25")
    other = dataclasses.replace(config, dtype="float16")

    def first_graph(config: AmpConfig) -> tuple[Any, Any]:
        tuner = process_costs.tuner_for(config, "CPU", config.dtype)
        return process_costs.prices_for(config, "CPU"), tuner

    with futures.ThreadPoolExecutor(2) as pool:
        (prices, one), (_, two) = pool.map(first_graph, (config, other))
    assert one.costs is two.costs
    # What is measured for one graph, the plans of all look at.
    assert one.costs.prices is prices is process_costs.prices_for(config, "CPU")
    assert one.allowance.budget is two.allowance.budget
