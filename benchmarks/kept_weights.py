"""What keeping weights between calls gains: ``python -m benchmarks.kept_weights``.

Inference with live variables, by itself, by itself again, and rewritten without and
with keeping. All four take turns in one process, so that whatever else the machine does
falls on each.
"""

import tf_amp
from benchmarks.cases import Found, measure_cases
from benchmarks.catalog import entry
from benchmarks.steps import Step, build_model, step_of
from benchmarks.turns import compared
from grappler_pass.fusions import KEPT_WEIGHTS, RULES

# Models, and how many examples they infer at once.
_CASES = (
    "resnet50:1",
    "resnet50:16",
    "mobilenet_v3:1",
    "mobilenet_v3:32",
    "bert:1",
    "bert:8",
    "mlp:64",
    "mlp:128",
    "mlp:512",
    "wide_deep:2048",
)
_ROUNDS = 15
_TITLES = ("model", "batch", "kept", "float32 ms", "A/A", "not kept", "tf-amp")
_EXPLANATION = (
    "Inference, prices deciding (`TF_AMP_TUNE=off`). *kept*: groups of values that "
    "hang on variables alone. *A/A*, *not kept*, *tf-amp*: speed-up over float32 of "
    "float32 again, of tf-amp without `kept_weights`, and with it: median of "
    f"{_ROUNDS} rounds, quartiles in brackets."
)


def measured(case: str) -> Found:
    """Return the row of a case, and seconds of its calls, round by round."""
    name, _, batch = case.partition(":")
    described = entry(name).with_batch(int(batch))
    model = build_model(described)

    def traced() -> Step:
        step = step_of(model, described, "infer")
        step()
        return step

    plain, again = traced(), traced()
    others = tuple(rule for rule in RULES if rule != KEPT_WEIGHTS)
    tf_amp.enable(dtype="bfloat16", tune="off", strict=True, fuse=others)
    not_kept = traced()
    tf_amp.enable(dtype="bfloat16", tune="off", strict=True, fuse=RULES)
    kept = traced()
    tf_amp.disable()
    rules = [each.rule for plan in tf_amp.plans() for each in plan.fusions]
    count = str(rules.count(KEPT_WEIGHTS))
    timed = compared((plain, again, not_kept, kept), _ROUNDS)
    return [(described.title, batch, count, *timed.cells)], timed.seconds


if __name__ == "__main__":
    measure_cases(
        "kept_weights", _CASES, measured, _TITLES, _EXPLANATION, rounds=_ROUNDS
    )
