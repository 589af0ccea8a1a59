"""Would mixed precision pay on another device: plans for it, and what holds them back.

Nothing is executed and no graph is changed. The device need not be present: its profile
prices the graph, which is placed and optimized by TensorFlow as for that device.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.planning.decisions import UnaskedSteps
from grappler_pass.planning.draft import Draft, Settings
from grappler_pass.planning.plan import Plan
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.report.display import Display, filled
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
        """Predicted seconds in float32 over those in mixed precision."""
        return self.plan.predicted_speedup

    @property
    def memory_bytes(self) -> tuple[float, float] | None:
        """Peak of live activations in float32 and mixed; None where unknown."""
        before, after = self.plan.peak_bytes_before, self.plan.peak_bytes_after
        return (before, after) if before else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without the rows of the plan."""
        memory = self.memory_bytes or (None, None)
        return {
            "device": self.device,
            "graph": self.graph,
            "low_dtype": self.plan.low_dtype,
            "seconds_float32": self.plan.seconds_before,
            "seconds_mixed": self.plan.seconds_after,
            "ratio": self.ratio,
            "activation_bytes_float32": memory[0],
            "activation_bytes_mixed": memory[1],
            "kernels": self.kernels,
            "assumptions": self.assumptions,
            "guessed_shapes": bool(self.plan.guessed),
            "obstacles": [dataclasses.asdict(each) for each in self.obstacles],
        }

    def summary(self) -> str:
        """Return one line: whether it pays."""
        pays = self.ratio >= _PAYS and not self.plan.is_empty
        answer = "pays" if pays else "does not pay"
        return f"{self.graph}: {self.plan.low_dtype} {answer} on {self.device}"

    def __rich__(self) -> RenderableType:
        """Show the verdict, the figures and the obstacles in a terminal."""
        parts: list[RenderableType] = [Text(self.summary(), "bold")]
        if self.plan.is_forgone:
            parts.append(Text(_NOTHING))
        before, after = self.plan.seconds_before, self.plan.seconds_after
        step = (f"{before * _MILLI:.4g}", f"{after * _MILLI:.4g}", f"{self.ratio:.2f}")
        rows = [("step (ms)", *step)]
        if self.memory_bytes is not None:
            before, after = (size / _MEBI for size in self.memory_bytes)
            ratio = f"{before / after:.2f}" if after else "-"
            rows.append(("activations (MiB)", f"{before:,.1f}", f"{after:,.1f}", ratio))
        titles = ("", "float32", "mixed", "ratio")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        parts.append(filled(table, titles, rows, numbers=titles[1:]))
        if span := self.plan.speedup_range:
            parts.append(Text(f"The ratio is {span}."))
        if self.plan.guessed:
            parts.append(Text(self.plan.guessed))
        if self.obstacles:
            parts.append(_obstacles(self.obstacles))
        return Padding(Group(*parts), (0, 0, 1, 0))


def print_audits(audits: Sequence[Audit]) -> None:
    """Print the reports, and what was assumed for all of them."""
    console = Console(markup=False, highlight=False)
    for audit in audits:
        console.print(audit)
    if audits:
        console.print(
            "ms: of the mixed step; lost: of these, what 16 bits at their best would "
            "save. CLEARLIST_ADD, DENYLIST_ADD: variables that start with "
            f"{LIST_PREFIX}. Which ops run in 16 bits: {audits[0].kernels}. "
            f"Costs: {audits[0].assumptions}. Left out: input pipeline, host, "
            "transfers between devices, XLA's fusions outside of jit_compile."
        )


def _obstacles(obstacles: Sequence[Obstacle]) -> Table:
    table = Table(
        title="What holds it back",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        expand=True,
    )
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("lost", justify="right", no_wrap=True)
    table.add_column("op, shape, node", overflow="fold", width=_OP_WIDTH)
    table.add_column("why => remedy", overflow="fold", ratio=1)
    for obstacle in obstacles:
        times = f"{len(obstacle.nodes)} x " if len(obstacle.nodes) > 1 else ""
        name = obstacle.nodes[0]
        if len(name) > _OP_WIDTH:
            # Its end, from the start of a scope, on one line.
            end = name[-_OP_WIDTH + 2 :]
            name = "../" + end.partition("/")[2] if "/" in end else ".." + end
        table.add_row(
            f"{obstacle.seconds * _MILLI:.3g}",
            f"{obstacle.lost_seconds * _MILLI:.3g}",
            Text(f"{times}{obstacle.op} {obstacle.dtype}\n{obstacle.shape}\n{name}"),
            Text("\n=> ".join(filter(None, (obstacle.why, obstacle.remedy)))),
        )
    return table


def audit(
    fn: Any,
    *args: Any,
    device_profile: str,
    dtype: str | None = None,
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
        path of one; it need not be present.
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
