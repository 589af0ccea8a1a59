"""Would mixed precision pay on another device: plans for it, and what holds them back.

Nothing is executed and no graph is changed. The device need not be present: its profile
prices the graph, which is placed and optimized by TensorFlow as for that device.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import RenderableType
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.notebook_display import NotebookDisplay
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.plan import Plan
from tf_amp.config.earlier_arguments import device_is_a_profile
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.audit import report as audit_report
from tf_amp.tools.audit.cases import Alternatives
from tf_amp.tools.audit.remedies import Obstacle, obstacles_of
from tf_amp.tools.explain import explanation
from tf_amp.tools.explain.named_arguments import check_named
from tf_amp.tools.graph_runs.batches import set_batch, signatures_of
from tf_amp.tools.target_device import Target, target_of


@dataclasses.dataclass(frozen=True, repr=False)
class Audit(NotebookDisplay):
    """One graph on one device.

    Attributes:
      device: name of the profile.
      graph: name of the graph.
      plan: what the pass would do there.
      obstacles: what holds it back, worst first.
      kernels: where it was looked up what can run in 16 bits.
      assumptions: how the prices were obtained.
      guessed_shapes: whether dimensions are unknown, so that guesses were priced.
    """

    device: str
    graph: str
    plan: Plan
    obstacles: tuple[Obstacle, ...]
    kernels: str
    assumptions: str
    guessed_shapes: bool = False

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
            "guessed_shapes": self.guessed_shapes,
            "obstacles": [dataclasses.asdict(each) for each in self.obstacles],
        }

    def __str__(self) -> str:
        """Print as tables for 80 columns."""
        return audit_report.text_of(self)

    def summary(self) -> str:
        """Return one line: whether it pays."""
        return audit_report.verdict(self)

    def __rich__(self) -> RenderableType:
        """Show in a terminal."""
        return audit_report.report_of(self)


@device_is_a_profile
def audit(
    fn: Any,
    *args: Any,
    device_profile: str,
    dtype: str | None = None,
    fetches: Iterable[str] | None = None,
    **kwargs: Any,
) -> Audit:
    """Return whether mixed precision would pay for a function on a device.

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
    check_named(audit, fn, kwargs)
    target = target_of(device_profile, dtype)
    graph_def, kept, name = explanation.traced_graph(fn, args, kwargs, fetches)
    return _audit_traced(graph_def, kept, name, target)


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
    audits = {}
    for name, function in signatures_of(folder, signature).items():
        graph_def, kept, _ = explanation.traced_graph(function, (), {})
        if batch is not None:
            set_batch(graph_def, batch)
        audits[name] = _audit_traced(graph_def, kept, name, target)
    alike = explanation.with_joined_names(
        audits,
        lambda audit: (dataclasses.replace(audit.plan, graph=""), audit.obstacles),
    )
    return tuple(dataclasses.replace(a, graph=names) for names, a in alike.items())


def audit_graph(
    graph_def: GraphDef,
    item: Item,
    target: Target,
    *,
    shapes: Callable[[], Shapes],
    name: str,
) -> Audit:
    """Plan a graph that is placed on a target and look for what holds it back."""
    draft = planned(graph_def, item, target, shapes=shapes, name=name)
    config = explanation.config_for(graph_def)
    return Audit(
        device=target.profile.name,
        graph=name,
        plan=draft.plan,
        obstacles=obstacles_of(Alternatives(draft, target, config)),
        kernels=target.kernels,
        assumptions=str(target.profile.provenance.get("how", "")),
        # Whether a product is priced with a dimension that is not known.
        guessed_shapes=any(
            decision.shape is None or None in decision.shape
            for slot, decision in enumerate(draft.plan.decisions)
            if slot in draft.constraints.allow
        ),
    )


def planned(
    graph_def: GraphDef,
    item: Item,
    target: Target,
    *,
    shapes: Callable[[], Shapes],
    name: str,
) -> Draft:
    """Return the draft whose plan the pass would carry out on a target."""
    drafts: list[Draft] = []
    pipeline.plan_graph(
        graph_def,
        item,
        target.settings(explanation.config_for(graph_def)),
        shapes=shapes,
        name=name,
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    return drafts[-1]


def _audit_traced(
    graph_def: GraphDef, kept: tuple[str, ...], name: str, target: Target
) -> Audit:
    optimized = target.optimized(graph_def, kept)
    config = explanation.config_for(optimized)
    return audit_graph(
        optimized,
        explanation.item_of(optimized, kept, config),
        target,
        shapes=lambda: shapes_from_graph_def(optimized),
        name=name,
    )
