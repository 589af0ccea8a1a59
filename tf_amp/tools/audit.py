"""Would mixed precision pay, here or elsewhere: plans, and what holds them back.

Nothing is executed and no graph is changed. The device need not be present: its profile
prices the graph, which is placed and optimized by TensorFlow as for that device.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.eligibility.exclusions import without_call_scopes
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.planning.decisions import UnaskedSteps
from grappler_pass.planning.draft import Draft, Settings
from grappler_pass.planning.plan import Cause, Plan, planned_nodes
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig, LowDtype
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.report.counts import counted
from tf_amp.report.display import Display, end_of_name, filled, show
from tf_amp.rewriting.compiled import DraftPart, plan_of_parts
from tf_amp.run.batches import signatures_of
from tf_amp.run.graph_cases import GraphCase
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools import explanation
from tf_amp.tools.obstacles import Alternatives, Obstacle, obstacles_of
from tf_amp.tools.target_device import Target, target_of

_MILLI = 1e3
_MEBI = 2.0**20
_PAYS = 1.02
# Of the step, what fusions save at least that have a row of their own.
_LEAST_SAVED = 0.005
_WITHOUT, _FUSED = "float32 without tf-amp", "float32 with fusions"
# A remedy of more letters is printed once.
_LONG_REMEDY = 60
_OP_WIDTH = 30
_NOTHING = (
    "It has no matrix product or convolution that may run in 16 bits, which are what "
    "gains from them."
)


@dataclasses.dataclass(frozen=True, repr=False)
class Audit(Display):
    """One graph on one device.

    Attributes:
      device: name of the profile.
      graph: name of the graph.
      plan: what the pass would do there.
      obstacles: what holds it back, worst first.
      kernels: where it was looked up what can run in 16 bits.
      assumptions: how the prices were obtained.
    """

    TEXT_WIDTH: ClassVar[int] = 80

    device: str
    graph: str
    plan: Plan
    obstacles: tuple[Obstacle, ...]
    kernels: str
    assumptions: str

    @property
    def ratio(self) -> float:
        """Predicted seconds in float32 without tf-amp over those with it."""
        return self.plan.predicted_speedup

    @property
    def is_mixed(self) -> bool:
        """Whether anything is in 16 bits."""
        return any(row.is_low for row in self.plan.decisions)

    @property
    def memory_bytes(self) -> tuple[float, float] | None:
        """Most bytes that are held at once, in float32 and mixed; None: not known."""
        before, after = self.plan.peak_bytes_before, self.plan.peak_bytes_after
        return (before, after) if before else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without the rows of the plan."""
        memory = self.memory_bytes or (None, None)
        return {
            "device": self.device,
            "graph": self.graph,
            "low_dtype": self.plan.low_dtype,
            "seconds_float32": self.plan.seconds_float32,
            "seconds_float32_fused": self.plan.seconds_fused,
            "seconds_mixed": self.plan.seconds_after,
            "ratio": self.ratio,
            "peak_bytes_float32": memory[0],
            "peak_bytes_mixed": memory[1],
            "started_ops_float32": self.plan.started_before or None,
            "started_ops_mixed": self.plan.started_after or None,
            "kernels": self.kernels,
            "assumptions": self.assumptions,
            "host_bound": self.plan.host_bound or None,
            "compiled_step": self.plan.compiled_step or None,
            "guessed_shapes": bool(self.plan.guessed),
            "obstacles": [dataclasses.asdict(each) for each in self.obstacles],
        }

    def summary(self) -> str:
        """Return one line: whether it pays."""
        plan = self.plan
        pays = self.is_mixed and plan.seconds_fused >= _PAYS * plan.seconds_after
        answer = "pays" if pays else "does not pay"
        return f"{self.graph}: {plan.low_dtype} {answer} on {self.device}"

    def __rich__(self) -> RenderableType:
        """Show the verdict, the figures and the obstacles in a terminal."""
        parts: list[RenderableType] = [Text(self.summary(), "bold")]
        if self.plan.is_forgone:
            parts.append(Text(_NOTHING))
        parts.append(self._table())
        if span := self.plan.speedup_range:
            parts.append(Text(f"With tf-amp the speed-up is {span}."))
        for said in filter(None, (self.plan.compiling, self.plan.guessed)):
            parts.append(Text(f"{said[0].upper()}{said[1:].removesuffix('.')}."))
        # A table ends with an empty line.
        if self.obstacles:
            parts.append(_obstacles(self.obstacles))
        if not_faster := self._not_faster():
            parts.append(Text(not_faster))
        if not_faster or not self.obstacles:
            parts.append(Text())
        return Group(*parts)

    def _not_faster(self) -> str:
        """Say how much there is that 16 bits do not make faster; "" if nothing."""
        nodes = planned_nodes(self.plan.decisions)
        slow = [node for node in nodes if node.main.reason.cause is Cause.COST]
        seconds = sum(node.seconds_float32 for node in slow)
        if not seconds:
            return ""
        return (
            f"16 bits are not faster here for {counted(len(slow), 'operation')}, which "
            f"{'takes' if len(slow) == 1 else 'take'} {seconds * _MILLI:.3g} ms."
        )

    def _table(self) -> Table:
        """Return a row for float32 without tf-amp, with fusions alone, and with all."""
        plan, unknown = self.plan, (0.0, 0.0)
        before = (plan.peak_bytes_before, plan.started_before)
        is_traced = plan.seconds_float32 > plan.seconds_before
        rows = [(_WITHOUT, plan.seconds_float32, *(unknown if is_traced else before))]
        saved = plan.seconds_float32 - plan.seconds_fused
        if self.is_mixed and saved >= _LEAST_SAVED * plan.seconds_float32:
            rows.append(
                (_FUSED, plan.seconds_fused, *(before if is_traced else unknown))
            )
        dtype = plan.low_dtype if self.is_mixed else "float32"
        after = (plan.peak_bytes_after, plan.started_after)
        rows.append((f"with tf-amp, {dtype}", plan.seconds_after, *after))
        titles = ("", "step (ms)", "speed-up", "memory (MiB)", "kernels started")
        cells = (
            (
                name,
                f"{seconds * _MILLI:.4g}",
                f"{plan.seconds_float32 / seconds if seconds else 1.0:.2f}",
                f"{memory / _MEBI:,.1f}" if memory else "-",
                f"{started:,.0f}" if started else "-",
            )
            for name, seconds, memory, started in rows
        )
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        return filled(table, titles, cells, numbers=titles[1:])


def print_audits(audits: Sequence[Audit], target: Target) -> None:
    """Print the reports for a target, and what was assumed for all of them."""
    if not audits:
        return
    notes = {}
    obstacles = [obstacle for audit in audits for obstacle in audit.obstacles]
    if obstacles:
        notes["ms"] = "the time of the operation in a step with tf-amp"
    if any(obstacle.remedy for obstacle in obstacles):
        notes["saves"] = (
            "the most ms per step that a remedy (=>) is expected to save, for the same "
            "work; - where that is not known"
        )
    remedies = " ".join(obstacle.remedy for obstacle in obstacles)
    if "--add" in remedies:
        notes["--add"] = (
            "an option, as in `tf-amp run --add clear=Exp train.py`; in a program, "
            'tf_amp.enable(lists={"add": {"clear": ["Exp"]}})'
        )
    if variables := sorted(set(re.findall(r"\w+LIST_(?:ADD|REMOVE)", remedies))):
        start = "environment variables that start with"
        notes[", ".join(variables)] = f"{start} {LIST_PREFIX}"
    notes["which ops run in 16 bits"] = f"from {audits[0].kernels}"
    notes["costs"] = (
        f"{target.profile.description}, where nothing else runs, without corrections "
        "by earlier steps; --json says how they were obtained"
    )
    notes["left out"] = (
        "the input pipeline, transfers between devices, and XLA's fusions outside of "
        "jit_compile"
    )
    elsewhere = devices.note_on_other_machine(target.profile)
    lines = [f"{name}: {text}." for name, text in notes.items()]
    show(*audits, *lines, *filter(None, [elsewhere]))


def _obstacles(obstacles: Sequence[Obstacle]) -> Table:
    table = Table(
        title="What holds it back",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        expand=True,
    )
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("saves", justify="right", no_wrap=True)
    table.add_column("op, shape, node", overflow="fold", width=_OP_WIDTH)
    table.add_column("why => what to write", overflow="fold", ratio=1)
    printed: set[str] = set()
    for obstacle in obstacles:
        remedy = obstacle.remedy
        if remedy in printed and len(remedy) > _LONG_REMEDY:
            remedy = "as above"
        printed.add(remedy)
        times = f"{len(obstacle.nodes)} x " if len(obstacle.nodes) > 1 else ""
        shown = end_of_name(without_call_scopes(obstacle.nodes[0]), _OP_WIDTH)
        saved = obstacle.saved_seconds
        table.add_row(
            f"{obstacle.seconds * _MILLI:.3g}",
            "-" if saved is None else f"{saved * _MILLI:.3g}",
            Text(f"{times}{obstacle.op} {obstacle.dtype}\n{obstacle.shape}\n{shown}"),
            Text("\n=> ".join(filter(None, (obstacle.why, remedy)))),
        )
    return table


def audit(
    fn: Any,
    *args: Any,
    device_profile: str | None = None,
    dtype: LowDtype | None = None,
    fetches: Iterable[str] | None = None,
    **kwargs: Any,
) -> Audit:
    """Return an audit: would mixed precision pay for a function on a device?

    Args:
      fn: a `tf.function`, any callable it could wrap (a Keras model), a
        ConcreteFunction, or a GraphDef; it is traced, not run.
      *args: what the function is called with: tensors or `tf.TensorSpec`; for a
        GraphDef, its fetches, one by one or in one list.
      device_profile: name of a shipped one ("v100", "t4", "a100", "h100", ...), or the
        path of one; it need not be present. By default that of this machine.
      dtype: "bfloat16" or "float16"; what suits the device by default.
      fetches: names of the nodes whose outputs are read, for a GraphDef.
      **kwargs: named arguments of the function.

    Raises:
      ConfigError: the profile or the dtype is unknown, or an argument is neither a
        setting nor one of the function's.
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      StageError: the plan cannot be made; the message names the stage.
    """
    check_tensorflow()
    explanation.check_named(audit, fn, kwargs)
    return _audit_of(fn, target_of(device_profile, dtype), args, kwargs, fetches)


def audit_saved_model(
    folder: pathlib.Path,
    target: Target,
    signature: str | None = None,
    batch: int | None = None,
) -> tuple[Audit, ...]:
    """Audit each signature of a SavedModel, or the one named.

    `batch` stands for an unknown first dimension of the inputs. Errors are those of
    `signatures_of`.
    """
    audits = {
        name: _audit_of(function, target, batch=batch)
        for name, function in signatures_of(folder, signature).items()
    }
    return explanation.with_joined_names(
        audits,
        lambda audit: (dataclasses.replace(audit.plan, graph=""), audit.obstacles),
    )


def _audit_of(
    fn: Any,
    target: Target,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = explanation.NO_ARGUMENTS,
    fetches: Iterable[str] | None = None,
    batch: int | None = None,
) -> Audit:
    """Return an audit of what `audit` is given."""
    drafts = explanation.drafts_of(
        fn,
        lambda config, _: _settings(config, target),
        args,
        kwargs,
        fetches=fetches,
        batch=batch,
        optimized=target.optimized,
    )
    return _audit_of_drafts(tuple(drafts), target)


def audit_case(case: GraphCase, target: Target) -> Audit:
    """Return an audit of a graph as the pass receives it; it needs no values."""
    draft = planned(
        target.placed(case.graph_def),
        case.item,
        target,
        shapes=lambda: case.shapes,
        name=case.name,
        is_compiled=case.settings.fuses,
    )
    return _audit_of_drafts((DraftPart("", 1.0, draft),), target)


def _audit_of_drafts(parts: Sequence[DraftPart], target: Target) -> Audit:
    """Look for what holds a function back, given drafts of it and what it calls."""
    alternatives = (
        Alternatives(
            part.draft,
            target,
            explanation.config_for(part.draft.graph_def),
            name=part.name,
            runs=part.weight,
        )
        for part in parts
    )
    plan = plan_of_parts(parts)
    return Audit(
        device=target.profile.name,
        graph=plan.graph,
        plan=plan,
        obstacles=obstacles_of(alternatives),
        kernels=target.kernels,
        assumptions=str(target.profile.provenance.get("how", "")),
    )


def planned(
    graph_def: GraphDef,
    item: Item,
    target: Target,
    *,
    shapes: Callable[[], Shapes],
    name: str,
    is_compiled: bool = False,
) -> Draft:
    """Return the draft whose plan the pass would carry out on a target.

    If XLA compiles the graph, that for its kernels.
    """
    config = explanation.config_for(graph_def)
    chosen = _settings(config, target, is_compiled=is_compiled)
    return pipeline.draft_graph(graph_def, item, chosen, shapes=shapes, name=name)


def _settings(
    config: AmpConfig, target: Target, *, is_compiled: bool = False
) -> Settings:
    """Return the settings of the pass for a graph on a target.

    Steps decide there in the end: a gain counts that they may find, sure or not.
    """
    chosen = target.settings(config, is_compiled=is_compiled)
    return dataclasses.replace(chosen, own_steps=UnaskedSteps())
