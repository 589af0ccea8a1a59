"""Hold a program of a recipe against what its steps are to leave."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import tensorflow as tf

from tests.saving import saving_by
from tests.scaling import figures, scaled_by
from tests.skip_oracle import INITIAL, INTERVAL, Model, Scale, Step, outcomes
from tests.skip_plans import plan_of
from tests.skip_programs import Program
from tests.skip_recipes import INPUTS, Recipe
from tf_amp import DynamicLossScale, LossScale, NoOpLossScale
from tf_amp.training import scale_state

# A few roundings of float32.
_TOLERANCE = 2.0**-19
_PLANTED = {"inf": np.inf, "nan": np.nan, "large": 64.0}
_INPUTS = np.array(
    [[1.0, 0.5, 1.5, 2.0], [0.75, 2.0, 1.0, 1.25], [1.75, 1.0, 0.5, 1.5]]
)


@dataclasses.dataclass
class Outcome:
    """What became of a recipe.

    Attributes:
      failure: what is wrong, if anything.
      calls: for gradients.
      overflows: of these.
      skipped: steps that had to be skipped.
      taken: steps that had to be taken.
      either: steps that might be skipped or taken.
      refused: whether TensorFlow does not build it, with or without loss scaling, or
        makes a graph of it that it cannot run.
    """

    failure: str = ""
    calls: int = 0
    overflows: int = 0
    skipped: int = 0
    taken: int = 0
    either: int = 0
    refused: int = 0


def prepare() -> None:
    """Make two devices of this process, if nothing has used its one."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)


def check(
    recipe: Recipe, loss_scale: LossScale | None = None, *, saves_memory: bool = False
) -> Outcome:
    """Train for all steps; return the first that leaves what it should not.

    Args:
      recipe: of the program.
      loss_scale: if not the one that the oracle knows.
      saves_memory: whether graphs are rewritten to hold less, in float32.
    """
    outcome, plan = Outcome(), plan_of(recipe)
    if loss_scale is None:
        loss_scale = DynamicLossScale(initial=INITIAL, growth_interval=INTERVAL)
    scaled = saving_by if saves_memory else scaled_by
    # What is applied before this training has taken any gradients comes from no call of
    # its own; an optimizer would take it for a result of the latest one in the process.
    scale_state._latest.clear()
    with scaled(loss_scale), np.errstate(all="ignore"):
        program = Program(recipe)
        before, scale, noted = program.state(), Scale(), []
        for number, plants in enumerate(recipe.plants):
            inputs, takes = _inputs(recipe, plants), not recipe.untaken[number]
            try:
                program.step(inputs, takes)
                after = program.state()
            except Exception as error:
                said = " ".join(str(error).split())[:600]
                if _is_refused(recipe, said):
                    outcome.refused = 1
                else:
                    outcome.failure = f"step {number}: {type(error).__name__}: {said}"
                return outcome
            model = _model(before, scale)
            model.noted = noted
            right = list(outcomes(recipe, plan, model, inputs, takes))
            wrong = [_difference(before, after, step) for step in right]
            first = next((i for i, text in enumerate(wrong) if not text), None)
            if first is None:
                outcome.failure = f"step {number}: {wrong[0]}"
                return outcome
            step, before = right[first], after
            scale, noted = step.model.scale, step.model.noted
            _count(outcome, step)
            expected = (scale.scale, scale.good, scale.skipped)
            actual = figures(loss_scale) if step.calls else expected
            if expected != actual:
                outcome.failure = f"step {number}: scale {actual}, not {expected}"
                return outcome
    return outcome


def _is_refused(recipe: Recipe, said: str) -> bool:
    """Return whether a program fails without loss scaling, too; `said`: its error."""
    # Constant folding may let what it has folded wait for itself.
    if "lies on a cycle" in said:
        return True
    # After that no program on replicas runs in this process.
    if "Collective ops is aborted" in said:
        return False
    with scaled_by(NoOpLossScale()):
        try:
            Program(recipe).step(_inputs(recipe, ()), takes=True)
        except Exception:
            return True
    return False


def _inputs(recipe: Recipe, plants: Any) -> np.ndarray:
    inputs = np.stack([_INPUTS * (1 + i) for i in range(max(recipe.replicas, 1))])
    for replica, row, kind in plants:
        inputs[replica % len(inputs), row % INPUTS, row] = _PLANTED[kind]
    return inputs


def _model(state: Any, scale: Scale) -> Model:
    weights, optimizers = state
    slots = []
    for variables in optimizers:
        slot: dict[str, Any] = {"iteration": int(variables["iteration"])}
        for kind in ("momentum", "velocity"):
            slot[kind] = [
                np.array(value, np.float64)
                for name, value in variables.items()
                if re.search(rf"_{kind}$", name)
            ]
        slots.append(slot)
    return Model([np.array(w, np.float64) for w in weights], slots, scale)


def _difference(before: Any, after: Any, step: Step) -> str:
    """Return what differs from what a step was to leave, if anything."""
    expected = step.model
    for i, (old, new) in enumerate(zip(before[0], after[0], strict=True)):
        if i not in step.changed:
            if old.tobytes() != new.tobytes():
                return f"weight {i} was to stay {old}, and is {new}"
        elif not _are_close(old, new, expected.weights[i]):
            return f"weight {i} was {old}, is {new}, not {expected.weights[i]}"
    for i, (old, new) in enumerate(zip(before[1], after[1], strict=True)):
        name = f"optimizer {i}"
        if name not in step.changed:
            for key in old:
                if old[key].tobytes() != new[key].tobytes():
                    return f"{key} of {name} was to stay {old[key]}, and is {new[key]}"
            continue
        slots = _model(([], [new]), expected.scale).slots[0]
        then = _model(([], [old]), expected.scale).slots[0]
        if slots["iteration"] != expected.slots[i]["iteration"]:
            return (
                f"{name} has counted {slots['iteration']} steps, "
                f"not {expected.slots[i]['iteration']}"
            )
        for kind in ("momentum", "velocity"):
            for place, value in enumerate(slots[kind]):
                wanted = expected.slots[i][kind][place]
                if not _are_close(then[kind][place], value, wanted):
                    return f"{kind} of {name} is {value}, not {wanted}"
    return ""


def _are_close(old: np.ndarray, new: np.ndarray, wanted: np.ndarray) -> bool:
    size = np.maximum(np.abs(old), np.abs(wanted))
    return bool((np.abs(new - wanted) <= _TOLERANCE * size).all())


def _count(outcome: Outcome, step: Step) -> None:
    outcome.calls += step.calls
    outcome.overflows += len(step.bad)
    outcome.skipped += step.forced["skip"]
    outcome.taken += step.forced["take"]
    outcome.either += len(step.chosen)
