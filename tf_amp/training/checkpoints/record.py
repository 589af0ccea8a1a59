"""What a checkpoint holds of ours: a few numbers for each loss scale, and the plans.

It is written as JSON: into checkpoints of TensorFlow's own format as one more string,
beside files of other formats as a file of its own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tf_amp.errors import UnreadableRecordError
from tf_amp.rewriting.resumed_plans import PlanRecord
from tf_amp.training.loss_scale.saved_scale import SavedScale, is_usable

_FORMAT = 1
# More than a graph can have whose GraphDef fits into 2 GiB.
_MOST_SLOTS = 2**24


@dataclasses.dataclass(frozen=True)
class Record:
    """All that is kept of a training under way.

    Attributes:
      loss_scales: in the order in which they were first used.
      plans: by what the graph is known by again.
      has_optimizer: whether weights were updated by an optimizer, not by hand.
      step: identifies the weights it belongs to, see `keras_files`; empty where these
        are in the same file.
    """

    loss_scales: tuple[SavedScale, ...] = ()
    plans: Mapping[str, PlanRecord] = dataclasses.field(default_factory=dict)
    has_optimizer: bool = True
    step: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to keep."""
        return not self.loss_scales and not self.plans


def text_from_records(records: Sequence[Record]) -> str:
    """Return JSON that `records_from_text` reads back equal."""
    found = [dataclasses.asdict(record) for record in records]
    return json.dumps({"tf_amp": _FORMAT, "records": found}, indent=1)


def records_from_text(text: str) -> tuple[Record, ...]:
    """Read what `text_from_records` has written.

    Raises:
      UnreadableRecordError: the text is damaged, or of a later version.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        version = fields["tf_amp"]
        if version != _FORMAT:
            raise UnreadableRecordError(
                f"its format is {version!r}; this version of tf-amp reads {_FORMAT}"
            )
        return tuple(map(_record_from_json, fields["records"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnreadableRecordError):
            raise
        raise UnreadableRecordError(f"{type(error).__name__}: {error}") from error


def _record_from_json(fields: dict[str, Any]) -> Record:
    scales = tuple(map(_scale_from_json, fields.pop("loss_scales")))
    plans = {key: _plan_from_json(plan) for key, plan in fields.pop("plans").items()}
    return Record(loss_scales=scales, plans=plans, **fields)


def _plan_from_json(fields: Mapping[str, Any]) -> PlanRecord:
    plan = PlanRecord(**fields)
    if type(plan.count) is not int or not 0 <= plan.count <= _MOST_SLOTS:
        raise UnreadableRecordError(
            f"the plan of {plan.graph} has {plan.count!r} slots"
        )
    low = int(plan.low, 16)
    if low < 0 or low.bit_length() > plan.count:
        raise UnreadableRecordError(f"the plan of {plan.graph} has too many slots")
    return plan


def _scale_from_json(fields: Mapping[str, Any]) -> SavedScale:
    """Return a scale whose values are numbers; others would do harm much later."""
    scale = SavedScale(**fields)
    for name, value in scale.values.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise UnreadableRecordError(
                f"{name} of {scale.kind} is {value!r}, no number"
            )
    if not is_usable(scale.values.get("scale", 1.0)):
        raise UnreadableRecordError(
            f"the scale of {scale.kind} is {scale.values['scale']}"
        )
    return scale
