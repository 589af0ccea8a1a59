"""The few lines that a process prints on stderr about its mixed precision.

Each comes once, says what to do next, and ends with a code that docs/troubleshooting.md
explains. `TF_AMP_VERBOSE=0` hides them all.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import pathlib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grappler_pass.annotations import STAMP
from grappler_pass.costs.device_profile import UNDER_XLA
from grappler_pass.eligibility.exclusions import unmatched
from grappler_pass.eligibility.reasons import Cause
from grappler_pass.fork_safety import renewed_lock
from grappler_pass.graph.op_table import PRODUCT_OPS
from tf_amp._tensorflow_private.functions import CLUSTERED, WHOLE, definitions
from tf_amp._tensorflow_private.tracing import attribute_of
from tf_amp.compare import call_sites
from tf_amp.compare.alternation import Verdict
from tf_amp.compare.call_sites import CallSite
from tf_amp.compare.compiled_steps import CompiledSteps, WholeSteps
from tf_amp.compare.own_steps import CALLS_IN_FLOAT32
from tf_amp.config import devices
from tf_amp.config.amp_config import HIDING_IS_SAID
from tf_amp.config.setting_values import is_of_layer
from tf_amp.message_codes import Code
from tf_amp.report.counts import counted
from tf_amp.rewriting import host, unseen
from tf_amp.tracing import graph_names, stack, stamps

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.planning.plan import Plan
    from tf_amp.config.amp_config import AmpConfig

# A job that takes less ends without a summary.
_LONG_SECONDS = 60.0
# Some programs trace without end.
_GRAPHS_KEPT = 256
# Exclusions that are named where several match nothing.
_NAMED = 3
_HIDE = "TF_AMP_VERBOSE=0 hides such lines"
_TOO_FEW = "too few to show whether 16 bits are faster"
# By the label of an instance.
_COMPILED = {CLUSTERED: "parts", WHOLE: "all"}
# What is printed as 1.01 times as fast, or more.
_LITTLE = 1.005
_ONLY_GAINS = "TF_AMP_OPT_LEVEL=O1 takes 16 bits only where they are faster"


@dataclasses.dataclass
class _PlannedGraph:
    """A graph that was planned, and how its steps have decided, if they have.

    Attributes:
      plan: its plan.
      calls: of what it belongs to.
      why: it stays as it was; "" for what was rewritten.
      dtype: of its products, if it stays as it was.
      has_waited: whether it ran in float32 before its steps were compared.
      is_faster: in 16 bits; None while that is not decided.
      compared: the times that have decided it.
    """

    plan: Plan
    calls: CallSite
    why: str
    dtype: str = "float32"
    has_waited: bool = False
    is_faster: bool | None = None
    compared: Verdict | None = None

    @property
    def is_undecided(self) -> bool:
        """Whether it waits for its steps to show which is faster."""
        waits = _is_in_doubt(self.plan) or (self.has_waited and not self.why)
        return self.is_faster is None and waits

    @property
    def remedy(self) -> str:
        """What would keep 16 bits though its steps were not faster."""
        setting = "TF_AMP_OPT_LEVEL=O2" if self.has_waited else "TF_AMP_TUNE=off"
        return f"{setting} would keep 16 bits"

    @property
    def _compiled(self) -> str:
        """What its steps have had XLA compile."""
        comparison = self.calls.comparison
        part = _COMPILED.get("" if comparison is None else comparison.winner)
        return f", {part} of it compiled by XLA," if part else ""

    @property
    def outcome(self) -> str:
        """How often it was called, unless it was by a server; its types and speed."""
        name, count = _name(self.plan), self.calls.count
        steps = f"{counted(count, 'step')} (calls of {name})" if count else name
        steps += self._compiled
        speed = f"expected {self.plan.predicted_speedup:.2f} times as fast as float32"
        if self.compared is not None:
            speed = f"{self.compared.ratio:.2f} times as fast as "
            speed += f"{self.plan.compared_with}, measured"
        if self.why:
            return f"{steps} in {self.dtype}"
        if self.is_undecided:
            return f"{steps} in float32, but for some that were compared"
        if self.is_faster is False:
            why = f"16 bits were {speed}" if self.compared else "16 bits failed"
            return f"{steps} in float32 at the end, since {why}"
        return f"{steps} with {_changes(self.plan)}, {speed}"


class RunSummary:
    """What a process has run, for the line at its end."""

    def __init__(self) -> None:
        """Begin with the first graph."""
        self._process = os.getpid()
        self._begin = time.monotonic()
        # By what counts the calls, so that another plan takes the place of the first.
        self._graphs: dict[int, _PlannedGraph] = {}
        # Calls of what was said to be decided by its steps.
        self.promised: CallSite | None = None
        # Whether an operation was seen that an exclusion matches.
        self._exclusions: dict[str, bool] = {}
        self._lock = renewed_lock()
        atexit.register(self._end)

    def add(
        self,
        plan: Plan,
        why: str = "",
        *,
        dtype: str = "float32",
        promises: bool = False,
    ) -> None:
        """Count from now on the calls of what a planned graph belongs to.

        `why` says why it stays as it was, in `dtype`; whoever `promises` has said that
        its steps decide.
        """
        entry = call_sites.current()
        calls = entry.site or call_sites.CallSite()
        with self._lock:
            has_waited = entry.is_late
            if why and id(calls) in self._graphs and not has_waited:
                # A part of the same call, or the plan after one that has lost.
                return
            if promises:
                self.promised = calls
            self._graphs[id(calls)] = _PlannedGraph(plan, calls, why, dtype, has_waited)
            if len(self._graphs) > _GRAPHS_KEPT:
                counts = {k: g.calls.count for k, g in [*self._graphs.items()][:-1]}
                del self._graphs[min(counts, key=counts.__getitem__)]

    def note(
        self, plan: Plan, is_faster: bool, compared: Verdict | None
    ) -> _PlannedGraph | None:
        """Keep how steps have decided on a plan, and return what is known of it."""
        for graph in tuple(self._graphs.values()):
            if graph.plan is plan:
                graph.is_faster, graph.compared = is_faster, compared
                return graph
        return None

    def look_for(self, exclusions: Sequence[str], plan: Plan) -> None:
        """Note which exclusions match an operation of a plan, or a part of one."""
        named = [each for each in exclusions if not is_of_layer(each)]
        missing = [each for each in named if not self._exclusions.get(each)]
        if missing:
            rows = plan.decisions
            unseen = unmatched(missing, {row.slot.node for row in rows})
            causes = (row.reason for row in rows if row.reason.cause is Cause.EXCLUDED)
            reasons = {reason.detail for reason in causes}
            for each in missing:
                self._exclusions[each] = each in reasons or each not in unseen

    def _end(self) -> None:
        # A forked child has what its parent registered.
        if os.getpid() != self._process:
            return
        unmatched = [repr(each) for each, seen in self._exclusions.items() if not seen]
        if unmatched:
            listed = ", ".join(unmatched[:_NAMED])
            if others := len(unmatched[_NAMED:]):
                listed += f" and {counted(others, 'other')}"
            verb = "matches" if len(unmatched) == 1 else "match"
            said = f"exclude: {listed} {verb} no operation of the graphs that ran"
            names = command("explain --top 0")
            Code.NOTHING_EXCLUDED.say(f"{said}; {names} lists the names")
        seconds = time.monotonic() - self._begin
        if not self._graphs or seconds < _LONG_SECONDS:
            # Of a short job: why no verdict has followed.
            short = self._graphs.get(id(self.promised))
            if short is not None and short.is_undecided:
                Code.SUMMARY.say(f"{short.outcome}; {_TOO_FEW}")
            return
        graph = max(self._graphs.values(), key=lambda graph: graph.calls.count)
        skipped = host.current().skipped_steps()
        if graph.is_undecided:
            more = _TOO_FEW
        elif graph.why:
            # The first line of a job has said it.
            is_said = (Code.STAYS_FLOAT32, graph.why) in host.current().said
            more = "" if is_said else graph.why
        elif graph.is_faster is False:
            more = "a folder in TF_AMP_LOG keeps the plan that lost, and "
            more += graph.remedy
        else:
            more = "`tf_amp.plans()`, or a folder in TF_AMP_LOG, has every decision"
        told = "" if skipped is None else f"; {counted(skipped, 'step')} skipped"
        more = more and f"; {more}"
        Code.SUMMARY.say(f"{seconds:.0f} s, {graph.outcome}{told}{more}")


def announce_plan(plan: Plan, config: AmpConfig, graph_def: GraphDef) -> None:
    """Say what becomes of a graph that has just been planned, if it is the first."""
    if not config.verbose:
        return
    if config.exclude:
        _job().look_for(config.exclude, plan)
    taking_part = host.current()
    if plan.is_empty and (dtype := low_dtype_of(graph_def)):
        why = _cause_of_low_types(graph_def)
        if taking_part.is_news(Code.LOW_ALREADY):
            already = f"{_name(plan)} computes in {dtype} already, since {why}"
            Code.LOW_ALREADY.say(f"{already}, and tf-amp decides")
        _job().add(plan, why, dtype=dtype)
        return
    if plan.is_empty:
        why = f"{_why(plan, config)}{_compiled_step(plan, config)}"
        is_first = Code.REWRITTEN not in taking_part.said
        is_said = is_first and taking_part.is_news(Code.STAYS_FLOAT32)
        if is_said:
            kept = f"{_name(plan)} stays float32"
            if fused := _fusions(plan):
                gain = f"may make it faster ({command('bench')} measures that)"
                kept += f", with {fused} that {gain}"
            Code.STAYS_FLOAT32.say(f"{kept}: {why}")
            taking_part.is_news((Code.STAYS_FLOAT32, why))
        _job().add(plan, why, promises=is_said and _is_in_doubt(plan))
        return
    # What has waited was said to be compared; the verdict is to follow.
    if not call_sites.current().is_late and taking_part.is_news(Code.REWRITTEN):
        speed = f"expected {plan.speedup_text}"
        more = f"{_compiled_step(plan, config)}{_hint(config.cache_dir)}"
        Code.REWRITTEN.say(f"{_name(plan)}: {_changes(plan)}, {speed}{more}")
    # A level that does not ask for costs.
    is_forced = any(
        row.is_low and row.reason.cause is Cause.FORCED for row in plan.decisions
    )
    is_slower = is_forced and round(plan.rewrite_speedup, 2) < 1
    if is_slower and taking_part.is_news(Code.SLOWER):
        Code.SLOWER.say(
            f"{_name(plan)}: with {plan.low_dtype} at {plan.opt_level} it is expected "
            f"to be slower than {plan.compared_with}, {plan.rewrite_speedup:.2f} times "
            "as fast; "
            f"{_ONLY_GAINS}"
        )
    _job().add(plan)


def announce_wrong_kernels(plan: Plan, config: AmpConfig) -> None:
    """Say once of each kernel that it is wrong, of all of a graph in one line."""
    faults = {
        f"{row.op} ({row.reason.detail})": row.slot.node
        for row in plan.decisions
        if row.reason.cause is Cause.WRONG_KERNEL
    }
    is_news = [fault for fault in faults if host.current().is_news(fault)]
    if not config.verbose or not is_news:
        return
    first, others = is_news[0], len(is_news) - 1
    more = f" and {counted(others, 'other kernel')}" if others else ""
    Code.WRONG_KERNEL.say(
        f"{_name(plan)}: float32 where TensorFlow's kernel in {plan.low_dtype} "
        f"computes wrong numbers: {first}{more}; `tf-amp doctor --all` lists them"
    )


def announce_steps(
    plan: Plan, config: AmpConfig, is_faster: bool, compared: Verdict | None
) -> None:
    """Say once how steps that ran both ways have decided on a plan."""
    if not config.verbose:
        return
    graph = _job().note(plan, is_faster, compared)
    if compared is None or graph is None:
        return
    is_first = host.current().is_news(Code.COMPARED)
    if not is_first and graph.calls is not _job().promised:
        return
    if is_faster:
        is_low = any(row.is_low for row in plan.decisions)
        stay = "16 bits stay" if is_low else "its fusions stay"
        outcome = f"{stay}, and `tf_amp.plans()` says where"
    else:
        outcome = f"it runs in float32 from now on, and {graph.remedy}"
    measured = _measured(plan, is_faster, compared)
    Code.COMPARED.say(f"{_name(plan)}: {measured}; {outcome}")


def announce_not_compiled(
    name: str, config: AmpConfig, reason: str, part: str = "nothing"
) -> None:
    """Say once why XLA compiles nothing of a function, or only parts of it.

    `part`: how much it compiles at most.
    """
    if config.verbose and host.current().is_news((Code.COMPILED, part)):
        Code.COMPILED.say(f"XLA compiles {part} of {name}: {reason}")


def announce_compiled(
    steps: CompiledSteps, config: AmpConfig, is_faster: bool, compared: Verdict | None
) -> None:
    """Say once how steps have decided on parts of a function that XLA compiles."""
    key = (Code.COMPILED, steps.label, is_faster)
    if not (config.verbose and host.current().is_news(key)):
        return
    if isinstance(steps, WholeSteps) and steps.refusal:
        announce_not_compiled(steps.name, config, steps.refusal, "at most clusters")
    elif isinstance(steps, WholeSteps):
        Code.COMPILED.say(f"{steps.name}: {_whole_outcome(steps, is_faster, compared)}")
    if isinstance(steps, WholeSteps):
        return
    parts = counted(steps.clusters, "cluster")
    took = f"its first call took {steps.first_seconds:.2g} s"
    if compared is None and is_faster:
        outcome = f"{parts} of it run compiled by XLA, as earlier steps were faster so"
    elif compared is None and steps.was_awaited:
        outcome = f"XLA was not done after {steps.compile_seconds:.0f} s"
    elif compared is None:
        outcome = (
            "XLA has compiled nothing of it. On CPUs it can only if tf-amp is enabled "
            "before TensorFlow first computes"
        )
    else:
        pairs = counted(len(compared.pairs), "pair")
        speed = f"{compared.ratio:.2f} times as fast in {pairs} of its own steps"
        stays = "which stay" if is_faster else "too little, so that they do not stay"
        saved = compared.seconds_before - compared.seconds_after
        spent = steps.first_seconds + steps.compile_seconds
        outcome = f"{speed} with {parts} compiled by XLA, {stays}"
        took += f", and XLA was done {steps.compile_seconds:.2g} s later"
        if is_faster:
            took += f", which {spent / saved:,.0f} calls repay"
    Code.COMPILED.say(f"{steps.name}: {outcome}; {took}")


def _whole_outcome(steps: WholeSteps, is_faster: bool, compared: Verdict | None) -> str:
    """Say how steps have decided on a function that XLA compiles as a whole."""
    seconds = steps.first_seconds if steps.waits else steps.compile_seconds
    beside = "in one call of the program, as memory" if steps.waits else "beside the"
    beside += " does not hold its variables twice" if steps.waits else " program"
    took = f"XLA took {seconds:.2g} s {beside}"
    if compared is None and is_faster:
        return f"it runs compiled by XLA, as earlier steps were faster so; {took}"
    if compared is None:
        return "compiled by XLA it failed, so that it does not stay"
    pairs = counted(len(compared.pairs), "pair")
    speed = f"{compared.ratio:.2f} times as fast in {pairs} of its own steps"
    if not is_faster:
        return f"{speed} compiled by XLA, too little, so that it does not stay; {took}"
    saved = compared.seconds_before - compared.seconds_after
    repaid = f"which {seconds / saved:,.0f} calls repay"
    return f"{speed} compiled by XLA, which stays; {took}, {repaid}"


def _measured(plan: Plan, is_faster: bool, compared: Verdict) -> str:
    """Say how fast 16 bits were in the steps that were compared."""
    pairs = counted(len(compared.pairs), "pair")
    speed = f"{compared.ratio:.2f} times as fast as {plan.compared_with} in {pairs}"
    speed += " of its own steps"
    speed += plan.in_all(compared.ratio)
    if is_faster or compared.is_slower:
        return speed
    return f"no clear gain: {speed}, less than noise and rounding are worth"


@functools.cache
def _job() -> RunSummary:
    return RunSummary()


def command(name: str) -> str:
    """Return a command of tf-amp for the script that runs, to be copied.

    What does not run as a script is called SCRIPT.
    """
    script, *arguments = sys.argv or [""]
    is_script = script.endswith(".py") and os.path.isfile(script)
    if not is_script or getattr(sys.modules["__main__"], "__spec__", None):
        return f"`tf-amp {name} SCRIPT`"
    words = [script, *(["--", *arguments] if arguments else [])]
    return f"`tf-amp {name} {shlex.join(words)}`"


def _name(plan: Plan) -> str:
    return plan.graph or "a graph"


def _hint(folder: pathlib.Path | None) -> str:
    """Say how lines are hidden, once on a machine: a file in the cache folder marks it.

    Without a folder that can be written it is not said.
    """
    if folder is None:
        return ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HIDING_IS_SAID).touch(exist_ok=False)
    except OSError:
        return ""
    return f"; {_HIDE}"


def _changes(plan: Plan) -> str:
    low = {row.slot.node for row in plan.decisions if row.is_low}
    nodes = {row.slot.node for row in plan.decisions}
    parts = []
    if low:
        count, share = f"{len(low)} of {len(nodes)} operations", plan.low_share
        if share is None:
            parts.append(f"{count} in {plan.low_dtype}")
        else:
            parts.append(f"{share:.0%} of the time in {plan.low_dtype} ({count})")
    if fused := _fusions(plan):
        parts.append(fused)
    return ", ".join(parts)


def _fusions(plan: Plan) -> str:
    count = len(plan.fusions) + len(plan.traced_fusions)
    return counted(count, "fusion") if count else ""


def _is_in_doubt(plan: Plan) -> bool:
    """Return whether a plan waits for its steps."""
    return any(row.reason.cause is Cause.DOUBT for row in plan.decisions)


def _why(plan: Plan, config: AmpConfig) -> str:
    if plan.is_forgone:
        return f"nothing in it may be in {plan.low_dtype}; {command('audit')} says why"
    if plan.host_bound:
        return plan.host_bound
    causes = {row.reason.cause for row in plan.decisions}
    if Cause.TRIAL in causes:
        return (
            "its steps have run both ways, and 16 bits were not faster; "
            "with TF_AMP_TUNE=off predictions decide"
        )
    if Cause.HOLDS_MORE in causes:
        return Cause.HOLDS_MORE.value
    speed = _speed_in_16_bits(plan)
    if Cause.DOUBT in causes:
        return (
            f"{plan.low_dtype} may not be faster here{speed}. Calls from the "
            f"{CALLS_IN_FLOAT32 + 1}st on run both ways, and the faster one stays; "
            "TF_AMP_TUNE=off keeps float32"
        )
    named = config.device_profile
    has_gpu = len(devices.present_devices()) > 1
    is_cpu = plan.profile.startswith("cpu-") if named else not has_gpu
    if is_cpu and plan.profile.endswith(UNDER_XLA):
        return (
            "on CPUs XLA (jit_compile=True) computes 16-bit products in float32, which "
            "gains nothing; without jit_compile=True TensorFlow has kernels for "
            f"{plan.low_dtype} (docs/xla.md)"
        )
    kind = "GPU" if has_gpu else "CPU"
    profile = devices.profile_of(config, devices.device_of_type(kind))
    if profile.note:
        return (
            f"this {kind} has not been measured, so it is not known what 16 bits gain; "
            "`tf-amp calibrate` measures it"
        )
    has_units = has_gpu or devices.has_bfloat16_units()
    if not named and not has_units and plan.low_speedup < 1.0:
        return (
            f"this CPU has no units for {plan.low_dtype}, which would be "
            f"slower{speed}; TF_AMP_DEVICE_PROFILE plans for another device, "
            "`tf-amp doctor` says what this one can do"
        )
    if plan.low_speedup >= _LITTLE:
        expected = (
            f"{plan.low_dtype} is expected to be {plan.low_speedup:.2f} times as fast "
            "as float32 here, which is too little to be sure of"
        )
    else:
        expected = f"{plan.low_dtype} is not expected to be faster here{speed}"
    return (
        f"{expected}; `tf-amp doctor` says what this machine can do, and "
        f"{command('audit')} what prevents a gain"
    )


def _compiled_step(plan: Plan, config: AmpConfig) -> str:
    """Say what XLA would take for a step, unless steps are to find that out."""
    is_said = plan.compiled_step and config.compile == "off"
    return f"; {plan.compiled_step}" if is_said else ""


def _speed_in_16_bits(plan: Plan) -> str:
    """Say how fast 16 bits are expected to be; "" where that is not known."""
    if not plan.low_speedup:
        return ""
    return f" (expected: {plan.low_speedup:.2f} times as fast as float32)"


# What TensorFlow's pass puts into the names of its casts.
_OF_PASS = "-AutoMixedPrecision"


def low_dtype_of(graph_def: GraphDef) -> str:
    """Return the 16-bit type of most products of a graph; "" where that is none."""
    import tensorflow as tf

    types = Counter(
        tf.dtypes.as_dtype(node.attr["T"].type).name
        for node in graph_def.node
        if node.op in PRODUCT_OPS and node.attr["T"].type
    )
    ((name, _),) = types.most_common(1) or [("", 0)]
    return name if name in ("bfloat16", "float16") else ""


def _cause_of_low_types(graph_def: GraphDef) -> str:
    """Say who has put the products of a graph in 16 bits, and what to take out."""
    if any(_OF_PASS in node.name for node in graph_def.node):
        return (
            "TensorFlow's own pass is on: take out auto_mixed_precision, or "
            "enable_mixed_precision_graph_rewrite"
        )
    # Those that new layers of Keras and tf_keras get.
    keras: Any = sys.modules.get("keras")
    tf_keras: Any = sys.modules.get("tf_keras")
    policies = []
    if hasattr(keras, "config"):
        policies.append(keras.config.dtype_policy())
    if hasattr(tf_keras, "mixed_precision"):
        policies.append(tf_keras.mixed_precision.global_policy())
    for policy in policies:
        if policy.name.startswith("mixed_"):
            return (
                f"Keras' policy {policy.name} is on: take out the policy, the float32 "
                "of the last layer and the LossScaleOptimizer"
            )
    return "the program casts, or a policy of its layers: take that out"


_EARLIER = (
    "enable it before the first call, or create the function again afterwards "
    "(of a Keras model: compile it again)"
)
_EARLIER_SESSION = "enable it before the Session is made, or make another"


def mention_function(context: Any, name: bytes) -> None:
    """Say so of a function that is called, unless it was traced in time."""
    if not _is_wanted():
        return
    bodies = (definition.node_def for definition in definitions(context, name))
    nodes = [node for body in bodies for node in body]
    has_products = any(node.op in PRODUCT_OPS for node in nodes)
    if has_products and not any(STAMP in node.attr for node in nodes):
        _announce_earlier_trace(graph_names.name_of_call(name.decode()), _EARLIER)


def mention_run(session: Any) -> None:
    """Say so of a graph that is run, unless its Session was made in time."""
    ops = session.graph.get_operations()
    products = [op for op in ops if op.type in PRODUCT_OPS]
    if products:
        unseen.note_products()
        is_early = all(attribute_of(op, STAMP) is None for op in products)
        if is_early and _is_wanted():
            _announce_earlier_trace(graph_names.SESSION, _EARLIER_SESSION)


def _announce_earlier_trace(name: str, remedy: str) -> None:
    """Say once that a graph comes from before `enable`, and what to do."""
    if host.current().is_news(Code.TRACED_BEFORE):
        Code.TRACED_BEFORE.say(
            f"{name} stays float32, for it was traced before mixed precision was on; "
            f"{remedy}"
        )


def _is_wanted() -> bool:
    if stack.leaves_graphs_alone() or Code.TRACED_BEFORE in host.current().said:
        return False
    config = stamps.current_config()
    return config is not None and config.rewrites and config.verbose
