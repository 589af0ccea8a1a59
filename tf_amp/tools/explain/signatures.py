"""The signatures of a SavedModel, and their plans."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tf_amp.errors import ConfigError, ScriptMissingError
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.explain.explanation import explain

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan
    from tf_amp.tools.explain.prediction import Prediction


def signatures_of(folder: pathlib.Path, signature: str | None = None) -> dict[str, Any]:
    """Return the signatures of a SavedModel by name, or the one named.

    Raises:
      ScriptMissingError: the folder does not hold a SavedModel.
      ConfigError: it has no signature of that name, or none at all.
    """
    check_tensorflow()
    import tensorflow as tf

    if not tf.saved_model.contains_saved_model(str(folder)):
        raise ScriptMissingError(f"{folder} does not hold a SavedModel.")
    loaded = tf.saved_model.load(str(folder))
    signatures = dict(loaded.signatures)
    if not signatures:
        raise ConfigError(
            f"{folder} has no signatures to run; export it with some, as Keras' "
            "model.export(folder) does."
        )
    if signature is None:
        return signatures
    if signature not in signatures:
        raise ConfigError(
            f"{folder} has no signature {signature!r}; it has {', '.join(signatures)}."
        )
    return {signature: signatures[signature]}


def explain_saved_model(
    folder: pathlib.Path, signature: str | None = None, *, measure: bool = False
) -> tuple[Plan | Prediction, ...]:
    """Return the plan of each signature of a SavedModel, or of the one named.

    Those with the same plan, as Keras exports them, have one between them, which has
    the names of all for that of its graph. Errors are those of `signatures_of` and of
    `explain`, to which `measure` is passed.
    """
    functions = signatures_of(folder, signature)
    plans = {name: explain(function) for name, function in functions.items()}
    alike = _alike(plans)
    if not measure:
        return tuple(_named(plans[names[0]], names) for names in alike)
    measured = ((explain(functions[n[0]], measure=True), n) for n in alike)
    return tuple(
        dataclasses.replace(found, plan=_named(found.plan, names))
        for found, names in measured
    )


def _alike(plans: Mapping[str, Plan]) -> Iterable[list[str]]:
    """Return the names of plans that differ in nothing else, together."""
    found: dict[Plan, list[str]] = {}
    for name, plan in plans.items():
        found.setdefault(dataclasses.replace(plan, graph=""), []).append(name)
    return found.values()


def _named(plan: Plan, names: Iterable[str]) -> Plan:
    return dataclasses.replace(plan, graph=", ".join(names))
