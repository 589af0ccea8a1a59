"""`tf_amp.plot_model`: Keras' drawing of a model, in the colors of a plan's types."""

from __future__ import annotations

import importlib
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from grappler_pass.planning.layers import planned_nodes
from grappler_pass.planning.plan import Decision, Plan
from tf_amp.errors import ConfigError, MissingExtraError

_COLORS = {"float32": "#3b6ea5", "bfloat16": "#2e8b57", "float16": "#2e8b57"}
_COUNTED = re.compile(r"_\d+$")


def plot_model(
    model: Any,
    plan: Plan,
    to_file: str | os.PathLike[str] = "model.png",
    **options: Any,
) -> Any:
    """Draw a model with each layer in the color of the type of most of its time.

    Blue is float32, green are 16 bits; black are layers without a predicted time. It
    takes pydot and graphviz, as Keras' own `plot_model` does.

    Args:
      model: of Keras 3 or tf_keras, functional or sequential.
      plan: of a graph in which the model is called: `tf_amp.explain(model, spec)`, or
        one of `tf_amp.plans()`. Its gradients count for the layer they belong to.
      to_file: path of the drawing; its suffix says the format.
      **options: as for `keras.utils.model_to_dot`, such as `show_shapes=True` and
        `expand_nested=True`.

    Returns:
      An image for notebooks where IPython is installed; else None.

    Raises:
      ConfigError: the model is not one of Keras, or the plan knows none of its layers.
      ImportError: pydot is missing; where it is graphviz, a MissingExtraError.
    """
    path = pathlib.Path(to_file)
    image_format = path.suffix.lstrip(".") or "png"
    try:
        colored_dot(model, plan, **options).write(str(path), format=image_format)
    except OSError as error:
        raise MissingExtraError(
            f"plot_model: graphviz did not draw {path} ({error}); its command `dot` "
            "must be installed: https://graphviz.org/download."
        ) from error
    try:
        display: Any = importlib.import_module("IPython.display")
    except ImportError:
        return None
    return display.Image(filename=str(path)) if image_format == "png" else None


def colored_dot(model: Any, plan: Plan, **options: Any) -> Any:
    """Return what is drawn, a `pydot.Dot`; arguments and errors as of `plot_model`."""
    seconds = layer_seconds(model, plan.decisions)
    if not seconds:
        raise ConfigError(
            f"plot_model: no operation of the plan {plan.graph!r} belongs to a layer "
            f"of {model.name!r}; wanted is the plan of a graph that calls this model."
        )
    dot = sys.modules[_kit_of(model)].utils.model_to_dot(model, **options)
    dtypes = {key: max(times, key=times.__getitem__) for key, times in seconds.items()}
    _color(dot, {key: _COLORS.get(dtype, "black") for key, dtype in dtypes.items()})
    dot.set("label", f"blue: float32, green: {plan.low_dtype}, by most of the time")
    return dot


def layer_seconds(
    model: Any, decisions: Iterable[Decision]
) -> dict[str, dict[str, float]]:
    """Return predicted seconds by layer and type, of layers within layers too.

    Returns:
      By `str(id(layer))`, as Keras names what it draws.
    """
    seconds: dict[str, dict[str, float]] = {}
    for node in planned_nodes(decisions):
        for layer in _layers_of(node.layer, model) if node.seconds else ():
            times = seconds.setdefault(str(id(layer)), {})
            dtype = node.main.dtype
            times[dtype] = times.get(dtype, 0.0) + node.seconds
    return seconds


def _layers_of(scopes: Sequence[str], model: Any) -> Iterator[Any]:
    """Yield the layers that scopes are of, the outermost first."""
    spellings = enumerate((scope, _COUNTED.sub("", scope)) for scope in scopes)
    at = [place for place, spelled in spellings if model.name in spelled]
    if not at:
        return
    # Keras 3 enters each scope twice, so that all names are counted.
    is_counted = scopes[at[-1]] != model.name
    inner = model
    for scope in scopes[at[-1] + 1 :]:
        named = {layer.name: layer for layer in getattr(inner, "layers", ())}
        spelled = (_COUNTED.sub("", scope), scope)[:: 1 if is_counted else -1]
        found = next((name for name in spelled if name in named), "")
        if not found:
            return
        inner = named[found]
        yield inner


def _color(dot: Any, colors: Mapping[str, str]) -> None:
    for node in dot.get_nodes():
        color = colors.get(node.get_name().strip('"'))
        if color is None:
            continue
        label = str(node.get("label"))
        node.set("label", label.replace('bgcolor="black"', f'bgcolor="{color}"'))
        if not label.startswith("<"):
            node.set("style", "filled")
            node.set("fillcolor", color)
            node.set("fontcolor", "white")
    for inner in dot.get_subgraphs():
        _color(inner, colors)


def _kit_of(model: Any) -> str:
    for kind in type(model).__mro__:
        root = kind.__module__.partition(".")[0]
        if kind.__name__ == "Model" and root in ("keras", "tf_keras"):
            return root
    raise ConfigError(
        f"plot_model: received {model!r}; wanted is a model of Keras 3 or tf_keras."
    )
