"""Functions that XLA compiles, or parts of them, where their own steps are faster so.

With `TF_AMP_COMPILE=clusters` a function gets one more instance: TensorFlow makes
clusters of what XLA can compile, and leaves the rest as it is. The instance is made
from the graph that comes for its label, with the types that are worth it under XLA.
What would compute something else in a cluster stays outside. With `TF_AMP_COMPILE=on`
a copy of the function that XLA compiles as a whole is compared next (`whole`).

Left alone, with a line that says so: a function whose kernels keep state, one of which
the program says `jit_compile=False`, and one that several devices of a kind compute.
Left alone without a word: Sessions, workers that train in step, what the program itself
has XLA compile, and what earlier steps have not found faster.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from grappler_pass.rewriting import clusters
from tf_amp._tensorflow_private import eager_context, functions
from tf_amp._tensorflow_private.functions import CLUSTERED, WHOLE
from tf_amp.compare import call_sites
from tf_amp.compare.compiled_steps import CompiledSteps, WholeSteps
from tf_amp.compare.own_steps import LATE, MIXED, Steps
from tf_amp.config import devices, scope_registry, workers
from tf_amp.rewriting import graph_settings, host, notices
from tf_amp.tracing import graph_names, stack
from tf_amp.tracing.stamp_reader import settings_in

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from tf_amp.compare.call_sites import CallSite
    from tf_amp.compare.verdicts import StepMemory
    from tf_amp.config.scope_registry import RegisteredScope
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
    """Have the steps of a function tell whether XLA compiles it, or parts of it."""
    from tf_amp.compare import verdicts
    from tf_amp.compare.fingerprint import fingerprint_of_graphs

    graph_def, scope = arrival.graph_def, _scope_for(arrival.graph_def)
    taking_part = host.current()
    is_observed = taking_part.observer or taking_part.without_xla or taking_part.placers
    if scope is None or is_observed or len(graph_def.node) < _FEWEST_OPS:
        return
    config = scope.config
    kind = graph_settings.target_device_type(graph_def)
    own_steps = verdicts.own_steps_for(config, kind)
    is_shared = workers.peers() is not None or workers.is_server()
    if own_steps is None or is_shared or devices.compiles_all():
        return
    if not functions.has_instances(eager_context()):
        return
    candidate = _Candidate(
        graph_names.name_of_call(site.name),
        site,
        scope,
        own_steps.memory,
        fingerprint_of_graphs([graph_def], arrival.item, arrival.shapes),
        len(graph_def.node),
        is_low=bool(notices.low_dtype_of(arrival.running)),
        obstacle=_obstacle(graph_def, site),
        device_type=kind,
    )
    site.compiling = (candidate.begin_clusters,)
    if config.compile == "on":
        site.compiling += (candidate.begin_whole,)


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


def _scope_for(graph_def: GraphDef) -> RegisteredScope | None:
    """Return the first settings of a graph if all of them ask for the same."""
    scopes = [scope_registry.scope_of(each) for each in settings_in(graph_def)]
    words = {"off" if scope is None else scope.config.compile for scope in scopes}
    return scopes[0] if len(words) == 1 and words != {"off"} else None


class _Candidate(NamedTuple):
    """A function that XLA may compile, or parts of it.

    Attributes:
      name: human-readable.
      site: where it is called.
      scope: its settings.
      memory: of the device that it runs on.
      digest: of its graph.
      ops: how many operations it has.
      is_low: whether TensorFlow's own instance is in 16 bits.
      obstacle: why it is left alone; "" where it is not.
      device_type: of what it runs on.
    """

    name: str
    site: CallSite
    scope: RegisteredScope
    memory: StepMemory
    digest: str
    ops: int
    is_low: bool
    obstacle: str
    device_type: str

    def begin_clusters(self, winner: str) -> CompiledSteps | None:
        """Compare the instance of a label with clusters.

        None where it has not been faster before, or is left alone.
        """
        if self.obstacle:
            config = self.scope.config
            notices.announce_not_compiled(self.name, config, self.obstacle)
            return None
        return self._begin(CompiledSteps, winner)

    def begin_whole(self, winner: str) -> CompiledSteps | None:
        """Compare the instance of a label with the function compiled as a whole.

        None as for clusters.
        """
        from tf_amp.rewriting import whole

        if self.obstacle:
            return None
        function = whole.WholeFunction(
            self.site, self.name, self.scope, self.device_type
        )
        begin = functools.partial(
            WholeSteps,
            examine=function.examine,
            make=function.make_copy,
            before=self.site.comparison,
        )
        return self._begin(begin, winner)

    def _begin(
        self, begin: Callable[..., CompiledSteps], winner: str
    ) -> CompiledSteps | None:
        kind = CLUSTERED if begin is CompiledSteps else WHOLE
        is_low = winner == LATE or (winner == MIXED and self.is_low)
        other = "16 bits" if is_low else "float32"
        if winner == CLUSTERED:
            other = CLUSTERED
        fingerprint = f"{self.digest} {kind} or {other}"
        is_faster = self.memory.is_faster(fingerprint)
        if is_faster is False:
            return None
        report = functools.partial(self._report, fingerprint)
        return begin(self.name, winner, self.ops, report, is_known=is_faster is True)

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
        compared = steps.compared
        refuses = isinstance(comparison, WholeSteps) and comparison.is_refused
        if compared is not None or refuses:
            seconds = (0.0, 0.0)
            if compared is not None:
                seconds = compared.seconds_before, compared.seconds_after
            verdict = KeptVerdict(self.name, is_faster, *seconds, time.time())
            self.memory.keep(fingerprint, verdict)
        config = self.scope.config
        notices.announce_compiled(comparison, config, is_faster, compared)
