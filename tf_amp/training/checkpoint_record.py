"""What a checkpoint holds of ours: a few numbers for each loss scale, and the plans.

It is written as JSON: into checkpoints of TensorFlow's own format as one more string,
beside files of other formats as a file of its own:

    model.weights.h5    model.weights.h5.tf_amp.json

That is written whole or not at all, and before the checkpoint itself, which may then
not come about: so it holds the record before this one as well, and each says what
weights it belongs to. A file that cannot be read is put aside, with one warning, and
the training starts fresh. What was restored and has found no use yet is kept in what is
saved next.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grappler_pass.costs.atomic_file import replacing
from tf_amp.errors import UnreadableRecordError
from tf_amp.message_codes import Code
from tf_amp.rewriting import host
from tf_amp.rewriting.resumed_plans import PlanRecord
from tf_amp.training import optimizers, restored_scales
from tf_amp.training.restored_scales import SavedScale, is_usable, saved_scale
from tf_amp.training.scale_state import ScaleState
from tf_amp.training.states import latest_state, states_here
from tf_amp.training.weights import Handles

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
      step: identifies the weights it belongs to, see `checkpoints.key_of`; empty where
        these are in the same file.
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


SUFFIX = ".tf_amp.json"
ASIDE = ".corrupt"


def path_beside(path: Any) -> pathlib.Path:
    """Return where the record of a checkpoint is."""
    return pathlib.Path(os.fspath(path) + SUFFIX)


def write_beside(path: Any, record: Record) -> None:
    """Put a record beside a checkpoint; an empty one removes what is there.

    A folder that cannot be written costs one warning, never a checkpoint.
    """
    if _is_remote(path):
        return
    if record.is_empty:
        remove_beside(path)
        return
    before = [one for one in read_beside(path) if one.step != record.step]
    text = text_from_records([record, *before[:1]])
    try:
        with replacing(path_beside(path)) as file:
            file.write(text)
    except OSError as error:
        Code.NOT_WRITTEN.warn_once(
            "The loss scale is not kept beside %s: %s", path, error
        )


def read_beside(path: Any) -> tuple[Record, ...]:
    """Return the records beside a checkpoint, the latest first; none if unreadable."""
    if _is_remote(path):
        return ()
    beside = path_beside(path)
    try:
        return records_from_text(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        Code.RECORD_IS_UNUSABLE.warn(
            "%s cannot be read, and is not used: %s", beside, error
        )
    except (UnreadableRecordError, UnicodeDecodeError) as error:
        _put_aside(beside, error)
    return ()


def remove_beside(path: Any) -> None:
    """Remove the record beside a checkpoint, if there is one."""
    if not _is_remote(path):
        path_beside(path).unlink(missing_ok=True)


def _put_aside(beside: pathlib.Path, error: Exception) -> None:
    aside = beside.with_name(beside.name + ASIDE)
    try:
        beside.replace(aside)
    except OSError:
        aside = beside
    Code.RECORD_IS_UNUSABLE.warn(
        "%s is damaged (%s) and not used; it is now %s.",
        beside,
        error,
        aside,
    )


def _is_remote(path: Any) -> bool:
    """Return whether a path is of a file system that only TensorFlow knows."""
    remote = "://" in os.fspath(path)
    if remote:
        Code.NOT_WRITTEN.warn_once(
            "Beside %s no loss scale or plan is kept: only beside local files.", path
        )
    return remote


def take_record(weights: Handles, session: Any = None) -> Record:
    """Return the record of this training as it is now.

    Args:
      weights: that are saved with it.
      session: for a training in a `tf.Graph`.
    """
    states = _states_in_use()
    # Weights that were never trained, such as an average of others, go with all.
    own = [state for state in states if state.has_trained(weights)]
    scales = (
        saved_scale(state.loss_scale, state.evaluate(session))
        for state in own or states
    )
    return Record(
        loss_scales=(*scales, *restored_scales.still_waiting(weights)),
        plans=host.current().memory.known(),
        has_optimizer=optimizers.have_applied(),
    )


def put_record_back(
    record: Record,
    path: str,
    weights: Callable[[], Handles | None],
    session: Any = None,
) -> list[Any]:
    """Let the training of some weights go on from a record, now or once it begins.

    Args:
      record: an empty one changes nothing, but that a loss scale that starts fresh says
        so.
      path: of the checkpoint, for messages.
      weights: returns what was restored with the record.
      session: for a training in a `tf.Graph`.

    Returns:
      What is still to be run in a Session, where none was given.

    Raises:
      CheckpointMismatchError: the record is that of another loss scale.
    """
    host.current().memory.resume(record.plans)
    restored = restored_scales.wait(record.loss_scales, path, weights)
    if not record.loss_scales:
        return []
    now = weights() or {}
    concerned = [s for s in states_here() if not s.weights or s.has_trained(now)]
    operations: list[Any] = []
    for state, values in restored_scales.shared_out(
        restored, concerned, latest_state()
    ):
        if state.in_graph and session is None:
            operations += state.write(values, values)
        else:
            state.replace(values, session)
    return operations


def _states_in_use() -> list[ScaleState]:
    """Return one state of each loss scale: of several, under strategies, the latest."""
    states, latest = states_here(), latest_state()
    found = {id(state.loss_scale): state for state in states}
    if latest is not None and any(state is latest for state in states):
        found[id(latest.loss_scale)] = latest
    return list(found.values())
