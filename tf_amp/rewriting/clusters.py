"""Functions of which XLA compiles parts, where their own steps are faster so.

With `TF_AMP_COMPILE=clusters` a function gets one more instance: TensorFlow makes
clusters of what XLA can compile, and leaves the rest as it is. The instance is made
from the graph that comes for its label, with the types that are worth it under XLA.
What would compute something else in a cluster stays outside.

Left alone, with a line that says so: a function whose kernels keep state, one of which
the program says `jit_compile=False`, and one that several devices of a kind compute.
Left alone without a word: Sessions, workers that train in step, what the program itself
has XLA compile, and what earlier steps have not found faster.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, NamedTuple

from grappler_pass.rewriting import clusters
from tf_amp._tensorflow_private import eager_context, functions
from tf_amp.compare import call_sites
from tf_amp.compare.compiled_steps import CompiledSteps
from tf_amp.compare.own_steps import LATE, MIXED, Steps
from tf_amp.config import devices, scope_registry, workers
from tf_amp.rewriting import graph_settings, host, notices
from tf_amp.tracing import graph_names, stack
from tf_amp.tracing.stamp_reader import settings_in

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from tf_amp.compare.call_sites import CallSite
    from tf_amp.compare.verdicts import StepMemory
    from tf_amp.config.amp_config import AmpConfig
    from tf_amp.rewriting.arriving_graphs import Arrival

# What has fewer operations starts them in less than a call takes.
_FEWEST_OPS = 30


def compiled_in_turn(arrival: Arrival) -> GraphDef | None:
    """Return the graph of an instance with clusters; have others compared with one."""
    entry = call_sites.current()
    if entry.is_compiled:
        return clusters.with_separate_nodes(arrival.running)
    site = entry.site
    if site is None or site.is_run or entry.label != MIXED:
        return None
    is_open = not site.compiling and not isinstance(site.comparison, CompiledSteps)
    if is_open and scope_registry.asks_for_clusters():
        _consider(arrival, site)
    return None


def _consider(arrival: Arrival, site: CallSite) -> None:
    """Have the steps of a function tell whether parts of it are to be compiled."""
    from tf_amp.compare import verdicts
    from tf_amp.compare.fingerprint import fingerprint_of_graphs

    graph_def, config = arrival.graph_def, _config_for(arrival.graph_def)
    taking_part = host.current()
    is_observed = taking_part.observer or taking_part.without_xla or taking_part.placers
    if config is None or is_observed or len(graph_def.node) < _FEWEST_OPS:
        return
    kind = graph_settings.target_device_type(graph_def)
    own_steps = verdicts.own_steps_for(config, kind)
    is_shared = workers.peers() is not None or workers.is_server()
    if own_steps is None or is_shared or devices.compiles_all():
        return
    if not functions.has_instances(eager_context()):
        return
    candidate = _Candidate(
        graph_names.name_of_call(site.name),
        config,
        own_steps.memory,
        fingerprint_of_graphs([graph_def], arrival.item, arrival.shapes),
        len(graph_def.node),
        is_low=bool(notices.low_dtype_of(arrival.running)),
        obstacle=_obstacle(graph_def, site),
    )
    site.compiling = (candidate.begin,)


def _obstacle(graph_def: GraphDef, site: CallSite) -> str:
    """Return why a function is left alone; "" where it is not."""
    from tf_amp.compare import verdicts

    key = site.name.encode()
    if (keeper := verdicts.state_keeper(graph_def)) is not None:
        return f"{keeper.name} ({keeper.op}) keeps state in its kernel"
    if stack.forbids_compiling() or functions.forbids_compiling(eager_context(), key):
        return "the program says jit_compile=False"
    names = {node.device for node in graph_def.node if node.device}
    if len({name.rpartition(":")[0] for name in names}) < len(names):
        return "several devices of a kind compute it"
    return ""


def _config_for(graph_def: GraphDef) -> AmpConfig | None:
    """Return the settings of a graph all of whose settings ask for clusters."""
    scopes = [scope_registry.scope_of(each) for each in settings_in(graph_def)]
    configs = [None if scope is None else scope.config for scope in scopes]
    asks = all(each is not None and each.compile == "clusters" for each in configs)
    return configs[0] if configs and asks else None


class _Candidate(NamedTuple):
    """A function parts of which XLA may compile.

    Attributes:
      name: human-readable.
      config: its settings.
      memory: of the device that it runs on.
      digest: of its graph.
      ops: how many operations it has.
      is_low: whether TensorFlow's own instance is in 16 bits.
      obstacle: why it is left alone; "" where it is not.
    """

    name: str
    config: AmpConfig
    memory: StepMemory
    digest: str
    ops: int
    is_low: bool
    obstacle: str

    def begin(self, winner: str) -> CompiledSteps | None:
        """Compare the instance of a label with clusters.

        None where it has not been faster before, or is left alone.
        """
        if self.obstacle:
            notices.announce_not_compiled(self.name, self.config, self.obstacle)
            return None
        is_low = winner == LATE or (winner == MIXED and self.is_low)
        fingerprint = f"{self.digest} clusters or {'16 bits' if is_low else 'float32'}"
        is_faster = self.memory.is_faster(fingerprint)
        if is_faster is False:
            return None
        report = functools.partial(self._report, fingerprint)
        return CompiledSteps(
            self.name, winner, self.ops, report, is_known=is_faster is True
        )

    def _report(
        self,
        fingerprint: str,
        comparison: CompiledSteps,
        is_faster: bool,
        steps: Steps,
    ) -> None:
        """Remember what steps have found, and say so."""
        from tf_amp.compare.verdicts import KeptVerdict

        self.memory.decide(fingerprint, is_faster)
        if (compared := steps.compared) is not None:
            seconds = compared.seconds_before, compared.seconds_after
            verdict = KeptVerdict(self.name, is_faster, *seconds, time.time())
            self.memory.keep(fingerprint, verdict)
        notices.announce_compiled(comparison, self.config, is_faster, compared)
