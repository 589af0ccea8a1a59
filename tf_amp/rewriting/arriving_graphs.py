"""What happens to each graph that TensorFlow passes.

Called on TensorFlow's threads, several at once, so nothing is held while it works.
Whatever fails, the graph passes as it was before the stage that failed, and `failures`
names the graph, the stage and the cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging
from absl.logging.converter import STANDARD_INFO

from grappler_pass.annotations import AGAIN, FINITE_BRANCH, SCALE, STAMP
from grappler_pass.fork_safety import cached_attribute
from grappler_pass.fusions import KEPT_WEIGHTS
from grappler_pass.garbage import collection_paused
from tf_amp.compare import call_sites
from tf_amp.compare.own_steps import Steps
from tf_amp.config import scope_registry, workers
from tf_amp.rewriting import (
    agreement,
    dumps,
    failures,
    graph_settings,
    host,
    notices,
    stripping,
    unseen,
)
from tf_amp.rewriting.failures import naming_stage, reporting
from tf_amp.tracing.stack import leaves_graphs_alone
from tf_amp.tracing.stamp_reader import (
    Marks,
    excluded_parts,
    marks_from_graph_def,
    sent_settings_in,
    settings_in,
)

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.pipeline import Rewrite
    from grappler_pass.planning.draft import PlanMemory
    from grappler_pass.planning.plan import Plan
    from grappler_pass.plugin import GrapplerItem
    from tf_amp.config.amp_config import AmpConfig
    from tf_amp.rewriting.dumps import PlanLog

_STAMP = STAMP.encode()


class Arrival:
    """A graph that TensorFlow passes: parsed once if at all, and serialized once.

    Attributes:
      data: the serialized GraphDef as it came.
      grappler_item: what TensorFlow says of it; valid until it has been answered.
    """

    _changed: GraphDef | None = None
    _serialized: bytes | None = None

    def __init__(self, data: bytes, grappler_item: GrapplerItem) -> None:
        """Begin with the graph as it came."""
        self.data = data
        self.grappler_item = grappler_item

    @cached_attribute
    def graph_def(self) -> GraphDef:
        """The graph as it came; not to be written."""
        from tensorflow.core.framework.graph_pb2 import GraphDef

        return GraphDef.FromString(self.data)

    @cached_attribute
    def item(self) -> Item:
        """What TensorFlow relies on."""
        from grappler_pass.graph.view import Item

        # A Session names targets again.
        names = (name.partition(":")[0] for name in self.grappler_item.fetch)
        return Item(tuple(dict.fromkeys(names)), preserve=self.grappler_item.preserve)

    @cached_attribute
    def shapes(self) -> Shapes:
        """The static shapes of every node."""
        return self.grappler_item.shapes([node.name for node in self.graph_def.node])

    @property
    def is_changed(self) -> bool:
        """Whether another graph is to run than the one that came."""
        return self._changed is not None

    @property
    def running(self) -> GraphDef:
        """The graph that is to run by now; not to be written."""
        return self.graph_def if self._changed is None else self._changed

    def run(self, changed: GraphDef | None) -> None:
        """Have another graph run; None: the same as before."""
        if changed is not None:
            self._changed, self._serialized = changed, None

    @property
    def running_data(self) -> bytes:
        """The serialized graph that is to run by now."""
        if self._changed is None:
            return self.data
        if self._serialized is None:
            self._serialized = bytes(self._changed.SerializeToString())
        return self._serialized


class Given(NamedTuple):
    """A graph to be rewritten, with what its caller says of it.

    Attributes:
      graph_def: the graph.
      item: what its caller relies on.
      shapes: returns static shapes.
      dropped: nodes that go back to float32, each with the reason.
      device_type: of the home of a graph that XLA compiles.
    """

    graph_def: Any
    item: Item
    shapes: Callable[[], Shapes]
    dropped: tuple[tuple[str, str], ...] = ()
    device_type: str | None = None


def rewrite_graph(data: bytes, item: GrapplerItem) -> bytes | None:
    """Return a serialized GraphDef in mixed precision; None leaves it as it is."""
    if leaves_graphs_alone():
        return None
    with collection_paused():
        arrival = Arrival(data, item)
        for each in (*_PASSES, *host.current().passes):
            if each.mark.encode() in data:
                with reporting(each.name, data, each.without):
                    arrival.run(each.apply(arrival))
        return arrival.running_data if arrival.is_changed else None


# TensorFlow's meta optimizer goes over each graph twice, on one thread. What has stayed
# float32 at the first visit does so at the second, when a few nodes more are folded or
# fused: it need not be planned again.
# `key`: of what has stayed float32 last, and was visited once, if there is any.
_visits = threading.local()


def key_of_visit(graph_def: GraphDef, fetch: Sequence[str], label: str) -> Hashable:
    """Return what is alike in both visits of a graph, and of an instance of it.

    Two graphs differ in the traces that their operations are stamped with, in what asks
    for 16 bits in them, or in what is fetched.
    """
    from tf_amp.compare.fingerprint import digest_of_products

    stamps = {n.attr[STAMP].s for n in graph_def.node if STAMP in n.attr}
    return digest_of_products(graph_def, {}), frozenset(stamps), tuple(fetch), label


def _rewritten(arrival: Arrival) -> GraphDef | None:
    entry, taking_part = call_sites.current(), host.current()
    has_settings = _STAMP in arrival.data or taking_part.without_stamps() is not None
    if entry.is_float32 or not has_settings:
        return None
    graph_def = arrival.graph_def
    visit = key_of_visit(graph_def, arrival.grappler_item.fetch, entry.label)
    last, _visits.key = getattr(_visits, "key", None), None
    if visit == last and taking_part.observer is None:
        return None
    if workers.is_server():
        workers.adopt_settings(sent_settings_in(graph_def), graph_settings.check_config)
    given = Given(
        graph_def, arrival.item, lambda: arrival.shapes, taking_part.dropped(arrival)
    )
    # Before anything can fail: what fails stays float32, too.
    _visits.key = visit
    return rewritten_by_stamps(given)


def _without_unneeded_scales(arrival: Arrival) -> GraphDef | None:
    """Return a graph without loss scales; None where they are to stay.

    Those that nobody asked for are taken out of graphs that stay float32. Whether a
    graph goes to float16 is known when it is planned, long after its gradients were
    scaled. Only the user's own wish for a loss scale goes before that. What is returned
    counts as rewritten, so that it never goes to float16 without them.
    """
    if arrival.is_changed or host.current().observer is not None:
        return None
    # Other processes may take part in what the graph computes.
    if workers.is_server() or workers.directed_key() or workers.peers() is not None:
        return None
    from tensorflow.core.framework.types_pb2 import DT_HALF

    from grappler_pass.rewriting.apply import is_rewritten, with_marks
    from grappler_pass.rewriting.loss_scales import without_loss_scales

    graph_def = arrival.running
    scopes = [scope_registry.scope_of(each) for each in settings_in(graph_def)]
    # The user has named a loss scale for a part of the graph.
    is_asked_for = any(s is None or s.config.loss_scale is not None for s in scopes)
    if is_rewritten(graph_def) or not scopes or is_asked_for:
        return None
    values = (value for node in graph_def.node for value in node.attr.values())
    if any(value.type == DT_HALF or DT_HALF in value.list.type for value in values):
        return None
    changed = without_loss_scales(graph_def, arrival.item)
    if changed is None:
        return None
    return with_marks(changed, {node.name for node in changed.node})


def _with_light_branches(arrival: Arrival) -> GraphDef | None:
    """Return a graph whose branches taken where gradients are finite cost little.

    The optimizer's updates are in one, with every variable and slot. TensorFlow puts a
    Switch and an Identity in front of each of them; both are taken out again. Then all
    that reads the learning rate or counts steps does so alike, and is made one.
    """
    from grappler_pass.rewriting.loss_scales import lighten_branches, merge_equal_reads

    before = graph_def = arrival.running
    for lighten in (lighten_branches, merge_equal_reads):
        graph_def = lighten(graph_def, FINITE_BRANCH, arrival.item) or graph_def
    return None if graph_def is before else graph_def


def _with_second_tries(arrival: Arrival) -> GraphDef | None:
    """Return a graph that takes gradients again that it uses itself and that overflow.

    No optimizer skips a step for them: a sampler, a saliency map or whoever fetches
    them would go on with infinities until the scale has fallen.
    """
    from grappler_pass.rewriting import second_try

    return second_try.with_second_tries(arrival.running)


_PASSES = (
    host.Pass("read", "stays float32", _rewritten),
    host.Pass("unscale", "scales its loss in vain", _without_unneeded_scales, SCALE),
    host.Pass(
        "lighten",
        "keeps a Switch in front of each variable",
        _with_light_branches,
        FINITE_BRANCH,
    ),
    host.Pass(
        "second try",
        "leaves gradients that overflow unchanged",
        _with_second_tries,
        AGAIN,
    ),
)


def rewritten_by_stamps(given: Given) -> Any | None:
    """Return a graph rewritten by the settings its operations are stamped with.

    None stands for the graph as it was given.
    """
    from grappler_pass.rewriting.apply import is_rewritten, with_marks, without_marks

    if stripping.is_converted(given.graph_def):
        return None
    with naming_stage("marks"):
        ids = settings_in(given.graph_def, scope_registry.canonical_id)
    main, *others = ids or (host.current().without_stamps() or "",)
    changed = _rewritten_part(given, main)
    if not others or is_rewritten(given.graph_def):
        return changed
    graph_def, rewritten = without_marks(changed or given.graph_def)
    for settings_id in others:
        changed = _rewritten_part(given._replace(graph_def=graph_def), settings_id)
        if changed is not None:
            graph_def, marked = without_marks(changed)
            rewritten |= marked
    return with_marks(graph_def, rewritten) if rewritten else None


def _rewritten_part(given: Given, settings_id: str) -> Any | None:
    """Return a graph with what belongs to some settings rewritten, or None."""
    scope = scope_registry.scope_of(settings_id)
    if scope is None or not scope.config.rewrites:
        return None
    with naming_stage("marks"):
        marks = marks_from_graph_def(
            given.graph_def, scope_registry.canonical_id, settings_id
        )
    try:
        return _rewrite(given, marks, scope)
    except Exception as error:
        failures.report(
            error, marks.graph, config=scope.config, before=lambda: given.graph_def
        )
        return None


def _rewrite(
    given: Given, marks: Marks, scope: scope_registry.RegisteredScope
) -> Any | None:
    from grappler_pass import kept_kernels, pipeline

    graph_def, taking_part = given.graph_def, host.current()
    logs = _logs(scope.config)
    memory: PlanMemory = taking_part.memory
    with naming_stage("settings"):
        if (others := workers.peers()) is not None:
            agreement.check_once(scope.config)
            memory = agreement.SharedPlans(memory, others)
        chosen = graph_settings.settings_for(scope, graph_def, given.device_type)
        chosen = dataclasses.replace(
            chosen,
            memory=memory,
            # Placers move nodes to devices that have no kernels of ours.
            keeps_weights=KEPT_WEIGHTS in chosen.fusions
            and not taking_part.placers
            and kept_kernels.are_at_hand(),
            # Whether anything here prints the plan of a graph once it is made.
            predicts_memory=_is_logged()
            or bool(logs or taking_part.observer or taking_part.watchers),
        )
    is_compiled = call_sites.current().is_compiled
    if is_compiled:
        under_xla = graph_settings.settings_under_xla(chosen)
        # It has been placed, unlike what XLA compiles as a whole.
        chosen = dataclasses.replace(under_xla, home=chosen.home)
    item = given.item
    if not any(chosen.lists.list_of(node.op) == "allow" for node in graph_def.node):
        if logs and taking_part.observer is None:
            unplanned = dumps.unplanned(marks.graph, graph_def, item, chosen)
            for log in logs:
                log.add(marks.graph, graph_def, unplanned)
        return None
    unseen.note_products()
    begin = time.perf_counter()
    item = dataclasses.replace(
        item,
        preserve=(*item.preserve, *marks.strangers),
        excluded=(*excluded_parts(graph_def, chosen.exclude), *given.dropped),
    )
    if taking_part.observer is not None:
        from tf_amp.run.graph_cases import GraphCase

        shapes, name = given.shapes(), marks.graph
        return taking_part.observer(
            GraphCase(graph_def, item, shapes, chosen, {}, name=name)
        )
    rewrite = pipeline.optimize(
        graph_def, item, chosen, shapes=given.shapes, name=marks.graph
    )
    for place in taking_part.placers[-1:]:
        rewrite = place(graph_def, rewrite, item, given.shapes(), chosen)
    seconds = time.perf_counter() - begin
    for log in logs:
        log.add(marks.graph, graph_def, rewrite)
    if not is_compiled:
        _record(rewrite, seconds, scope.config)
    # Sharing scalars changes a graph, and decides on no type.
    if rewrite.changed and not (rewrite.plan and rewrite.plan.is_empty):
        _visits.key = None
    return rewrite.graph_def if rewrite.changed else None


def _record(rewrite: Rewrite, seconds: float, config: AmpConfig) -> None:
    """Keep the plan of a changed graph; log one line, once per graph and outcome."""
    if rewrite.plan is None:
        return
    for watcher in tuple(host.current().watchers):
        watcher(rewrite)
    notices.announce_plan(rewrite.plan, config, rewrite.graph_def)
    notices.announce_wrong_kernels(rewrite.plan, config)
    if rewrite.changed and not rewrite.plan.is_empty:
        _keep_plan(rewrite.plan, config)
    if _is_logged():
        details = rewrite.plan.details()
        if host.current().is_news(details) or rewrite.changed:
            logging.info("%s; planned in %.2f s", details, seconds)


def _logs(config: AmpConfig) -> tuple[PlanLog, ...]:
    """Return what receives the plans that are made under some settings."""
    logs, folder = host.current().logs, config.log_dir
    if folder is None or any(log.stands_for(folder) for log in logs):
        return tuple(logs)
    return (*logs, dumps.FolderLog(folder, config.verbose))


def _is_logged() -> bool:
    return bool(logging.get_absl_logger().isEnabledFor(STANDARD_INFO))


def _keep_plan(plan: Plan, config: AmpConfig) -> None:
    """Count a plan among those applied, until steps find its graph slower."""

    def decided(is_faster: bool, steps: Steps) -> None:
        notices.announce_steps(plan, config, is_faster, steps.compared)
        if steps.compared is not None:
            ratio, pairs = steps.compared.ratio, len(steps.compared.pairs)
            told = dumps.ComparedSteps(plan.graph, is_faster, ratio, pairs)
            for log in _logs(config):
                log.add_steps(told)
        if not is_faster:
            with contextlib.suppress(ValueError):
                host.current().plans.remove(plan)

    host.current().plans.append(plan)
    call_sites.current().when_decided(decided)
