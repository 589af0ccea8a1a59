"""Which graph is faster: remembered from earlier runs, or found out by the next steps.

A verdict is kept by the fingerprint of its graphs, so that steps are compared once, not
in every process. What their profiled calls teach about prices is kept beside it.
Grappler's second visit of a graph that has lost, which differs a little, does not come
here: see `second_visits`.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from absl import logging
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.learned import log_ratio
from grappler_pass.graph.op_traits import keeps_state_in_kernel
from grappler_pass.planning.draft import NodePrices, Outcome, Trial
from tf_amp import _tensorflow_private as private
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.peers import is_joint, peers
from tf_amp.measuring.fingerprint import fingerprint_of
from tf_amp.measuring.steps import compared_calls
from tf_amp.measuring.steps.memory import StepMemory, Verdict, memory_of
from tf_amp.measuring.steps.step_comparison import Steps
from tf_amp.tracing.grappler_preview import with_bodies


class StepVerdicts(NamedTuple):
    """What steps have shown, and will show; of the pass's `OwnSteps`.

    Attributes:
      memory: of the device that the graph runs on.
      memories: by type of device, of all that are present.
      foresees: whether it only says what will be once the graph runs.
    """

    memory: StepMemory
    memories: Mapping[str, StepMemory]
    foresees: bool = False

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Return which of two graphs is faster, or have their steps compared.

        Of workers that train in step the chief decides, about what all of them run.
        What is certain without is not compared, nor is what keeps state in its kernels:
        a second instance would repeat the random numbers of the first, or miss what
        lies in its queues.
        """
        others = peers()
        if others and not (others.is_chief and is_joint(trial.before)):
            return Outcome.UNKNOWN
        fingerprint = fingerprint_of(trial)
        known = self.memory.is_faster(fingerprint)
        if known:
            compared_calls.accept()
        if known is not None:
            return Outcome.FASTER if known else Outcome.SLOWER
        if trial.is_certain and not compared_calls.is_late():
            return Outcome.UNKNOWN
        keeper = state_keeper(trial.before)
        if keeper is not None:
            logging.info(
                "%s is not compared: %s (%s) keeps state in its kernel; predictions "
                "decide",
                trial.name or "A graph",
                keeper.name,
                keeper.op,
            )
            return Outcome.KERNEL_STATE
        if self.foresees:
            return Outcome.OPEN if trial.is_sure else Outcome.WITHHELD
        if not trial.is_sure and compared_calls.begin_in_float32(trial):
            return Outcome.WITHHELD
        keep = functools.partial(self._keep, trial, fingerprint, decided)
        learns = any(map(self._is_to_be_learned, trial.prices.values()))
        learn = functools.partial(self._learn, trial) if learns else None
        begun = compared_calls.begin(trial, keep, learn)
        return Outcome.OPEN if begun else Outcome.UNKNOWN

    def _is_to_be_learned(self, prices: NodePrices) -> bool:
        """Return whether steps may yet correct a price of a node."""
        learned = self.memories.get(prices.device_type, self.memory).learned
        lessons = map(learned.lessons.get, (prices.float32.cell, prices.low.cell))
        return not all(lesson and lesson.is_over for lesson in lessons)

    def _keep(
        self,
        trial: Trial,
        fingerprint: str,
        decided: Callable[[bool], None],
        is_faster: bool,
        steps: Steps,
    ) -> None:
        """Remember what steps have found; a failure may be this process' alone."""
        compared, name = steps.compared, trial.name or "A graph"
        kept = "16 bits are kept" if is_faster else "16 bits are not faster"
        logging.info("%s compared: %s; %s", name, compared or "failed", kept)
        self.memory.decide(fingerprint, is_faster)
        decided(is_faster)
        if compared is None:
            return
        seconds = compared.seconds_before, compared.seconds_after
        verdict = Verdict(trial.name, is_faster, *seconds, time.time())
        self.memory.keep(fingerprint, verdict)

    def _learn(self, trial: Trial, steps: Steps) -> None:
        """Remember what profiled calls tell of prices."""
        for device_type, readings in readings_of(trial.prices, steps).items():
            self.memories.get(device_type, self.memory).learn(readings)


def own_steps_for(config: AmpConfig, device_type: str) -> StepVerdicts | None:
    """Return what lets steps decide; None where prices alone do.

    So it is with tuning off, where another device is planned for, and under
    determinism, where plans may not change.
    """
    is_other = config.device_profile is not None
    if config.tune == "off" or is_other or private.is_determinism_enabled():
        return None
    present = {device.device_type for device in devices.present_devices()}
    memories = {
        kind: memory_of(config.cache_dir, kind) for kind in {device_type, *present}
    }
    return StepVerdicts(memories[device_type], memories)


def readings_of(
    prices: Mapping[str, NodePrices], steps: Steps
) -> dict[str, dict[str, list[float]]]:
    """Return readings by type of device and cell: one of each profiled call.

    Nodes that one cell stands for count together: the middle of their logarithms. A
    node tells of both types or of none; where it was too short to tell, its cells are
    named without a reading.
    """
    taught: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for float32, low in zip(steps.float32, steps.mixed, strict=True):
        of_call: dict[tuple[str, str], list[float]] = defaultdict(list)
        for node in prices.keys() & float32.keys() & low.keys():
            device_type, *both = prices[node]
            seconds = (float32[node], low[node])
            logs = [log_ratio(s, e.seconds) for s, e in zip(seconds, both, strict=True)]
            for expected, log in zip(both, logs, strict=True):
                found = of_call[device_type, expected.cell]
                if log is not None and None not in logs:
                    found.append(log)
        for (device_type, cell), found in of_call.items():
            taught[device_type][cell] += [statistics.median(found)] if found else []
    return taught


def state_keeper(graph_def: GraphDef) -> NodeDef | None:
    """Return a node of a graph, or of its functions, that cannot have two kernels."""
    graph_def = with_bodies(graph_def)
    bodies = (function.node_def for function in graph_def.library.function)
    own = () if compared_calls.shares_kernels() else graph_def.node
    nodes = itertools.chain(own, *bodies)
    return next(filter(keeps_state_in_kernel, nodes), None)
