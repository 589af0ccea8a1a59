"""Would mixed precision pay on another device: plans for it, and what holds them back.

Nothing is executed and no graph is changed. The device need not be present: its profile
prices the graph, which is placed and optimized by TensorFlow as for that device.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.functions.bodies import merged
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.decisions import UnaskedSteps
from grappler_pass.planning.draft import Draft, Settings
from tf_amp._tensorflow_private.functions import is_compiled_function
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting import compiled
from tf_amp.rewriting.compiled import DraftPart
from tf_amp.run.batches import signatures_of
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.audit.cases import Alternatives
from tf_amp.tools.audit.remedies import obstacles_of
from tf_amp.tools.audit.report import Audit
from tf_amp.tools.explain import explanation
from tf_amp.tools.target_device import Target, target_of
from tf_amp.tracing.graph_names import name_of


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
    explanation.check_named(audit, fn, kwargs)
    target = target_of(device_profile, dtype)
    if isinstance(fn, GraphDef):
        graph_def, kept, name = explanation.traced_graph(fn, args, kwargs, fetches)
        return _audit_of(name, target, (_traced_part(graph_def, kept, name, target),))
    function = explanation.concrete_function(fn, args, kwargs)
    name = name_of(function.graph)
    return _audit_of(name, target, _parts_of(function, target, name))


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
        parts = _parts_of(function, target, name, batch)
        audits[name] = _audit_of(name, target, parts)
    return explanation.with_joined_names(
        audits,
        lambda audit: (dataclasses.replace(audit.plan, graph=""), audit.obstacles),
    )


def audit_graph(
    graph_def: GraphDef,
    item: Item,
    target: Target,
    *,
    shapes: Callable[[], Shapes],
    name: str,
    is_compiled: bool = False,
) -> Audit:
    """Plan a graph that is placed on a target and look for what holds it back."""
    draft = planned(
        graph_def, item, target, shapes=shapes, name=name, is_compiled=is_compiled
    )
    return _audit_of(name, target, (DraftPart("", 1.0, draft),))


def _audit_of(name: str, target: Target, parts: Sequence[DraftPart]) -> Audit:
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
    return Audit(
        device=target.profile.name,
        graph=name,
        plan=merged(compiled.plan_parts(parts)),
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
    chosen = _settings(target, config, is_compiled=is_compiled)
    return pipeline.draft_graph(graph_def, item, chosen, shapes=shapes, name=name)


def _settings(
    target: Target, config: AmpConfig, *, is_compiled: bool = False
) -> Settings:
    """Return what the pass is given for a target.

    Steps decide there in the end: a gain counts that they may find, sure or not.
    """
    chosen = target.settings(config, is_compiled=is_compiled)
    return dataclasses.replace(chosen, own_steps=UnaskedSteps())


def _parts_of(
    function: Any, target: Target, name: str, batch: int | None = None
) -> Sequence[DraftPart]:
    """Return the drafts of a ConcreteFunction, and of the compiled ones it calls.

    `batch` stands for an unknown first dimension of its inputs.
    """

    def settings_of(graph_def: GraphDef, item: Item, _: str) -> tuple[Item, Settings]:
        config = explanation.config_for(graph_def)
        own = explanation.item_of_body(graph_def, item, config)
        return own, _settings(target, config)

    if is_compiled_function(function):
        return compiled.drafts_of_compiled(function.graph, settings_of)
    graph_def, kept, _ = explanation.traced_graph(function, (), {}, batch=batch)
    called = compiled.drafts_of_callees(function.graph, settings_of)
    return (_traced_part(graph_def, kept, name, target), *called)


def _traced_part(
    graph_def: GraphDef, kept: tuple[str, ...], name: str, target: Target
) -> DraftPart:
    """Return the draft of a graph that XLA does not compile."""
    optimized = target.optimized(graph_def, kept)
    config = explanation.config_for(optimized)
    draft = planned(
        optimized,
        explanation.item_of(optimized, kept, config),
        target,
        shapes=lambda: shapes_from_graph_def(optimized),
        name=name,
    )
    return DraftPart("", 1.0, draft)
