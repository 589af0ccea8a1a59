"""What a checkpoint holds of ours: a few numbers for each loss scale, and the plans.

It is written as JSON: into checkpoints of TensorFlow's own format as one more string,
beside files of other formats as a file of its own:

    model.weights.h5    model.weights.h5.tf_amp.json

That is written whole or not at all, and before the checkpoint itself, which may then
not come about: so it holds the record before this one as well, and each says what
weights it belongs to. A file that cannot be read is put aside, with one warning, and
the training starts fresh.

What was restored goes with the weights that were restored: a loss scale takes it up as
soon as it scales gradients of one of these, which may be the first it scales at all.
Whatever else is trained in the process does not notice. What has found no use yet is
kept in what is saved next.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grappler_pass.costs.atomic_file import replacing
from grappler_pass.fork_safety import renewed_lock
from tf_amp.config.loss_scales.protocol import LossScale, StaticLossScale
from tf_amp.config.loss_scales.words import words_from_loss_scale
from tf_amp.errors import CheckpointMismatchError, ConfigError, UnreadableRecordError
from tf_amp.message_codes import Code
from tf_amp.rewriting.host import PlanRecord

# Of variables, by identity. Whoever keeps them keeps them weakly, so that no number is
# given twice.
Handles = Mapping[int, Any]
Values = Mapping[str, float | int]

_FORMAT = 1
# More than a graph can have whose GraphDef fits into 2 GiB.
_MOST_SLOTS = 2**24


@dataclasses.dataclass(frozen=True)
class SavedScale:
    """The state of one loss scale as it was saved.

    Attributes:
      kind: name of the loss scale's class.
      words: the loss scale in words, human-readable and to distinguish two of a class.
      values: its state by name.
    """

    kind: str
    words: str
    values: Values


@dataclasses.dataclass(frozen=True)
class Record:
    """All that is kept of a training under way.

    Attributes:
      loss_scales: in the order in which they were first used.
      plans: by what identifies the graph in another process.
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
    fields = [dataclasses.asdict(record) for record in records]
    return json.dumps({"tf_amp": _FORMAT, "records": fields}, indent=1)


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
    except UnreadableRecordError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRecordError(f"{type(error).__name__}: {error}") from error


def _record_from_json(fields: dict[str, Any]) -> Record:
    """Return a record whose numbers are such; others would do harm much later."""
    scales = tuple(SavedScale(**scale) for scale in fields.pop("loss_scales"))
    for scale in scales:
        for name, value in scale.values.items():
            if type(value) not in (int, float):
                raise UnreadableRecordError(
                    f"{name} of {scale.kind} is {value!r}, no number"
                )
        if not is_usable(scale.values.get("scale", 1.0)):
            raise UnreadableRecordError(
                f"the scale of {scale.kind} is {scale.values['scale']}"
            )
    plans = {key: PlanRecord(**plan) for key, plan in fields.pop("plans").items()}
    for plan in plans.values():
        if type(plan.count) is not int or not 0 <= plan.count <= _MOST_SLOTS:
            raise UnreadableRecordError(
                f"the plan of {plan.graph} has {plan.count!r} slots"
            )
        low = int(plan.low, 16)
        if low < 0 or low.bit_length() > plan.count:
            raise UnreadableRecordError(f"the plan of {plan.graph} has too many slots")
    return Record(loss_scales=scales, plans=plans, **fields)


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
        aside = beside.with_name(beside.name + ASIDE)
        try:
            beside.replace(aside)
        except OSError:
            aside = beside
        Code.RECORD_IS_UNUSABLE.warn(
            "%s is damaged (%s) and not used; it is now %s.", beside, error, aside
        )
    return ()


def remove_beside(path: Any) -> None:
    """Remove the record beside a checkpoint, if there is one."""
    if not _is_remote(path):
        path_beside(path).unlink(missing_ok=True)


def _is_remote(path: Any) -> bool:
    """Return whether a path is of a file system that only TensorFlow knows."""
    remote = "://" in os.fspath(path)
    if remote:
        Code.NOT_WRITTEN.warn_once(
            "Beside %s no loss scale or plan is kept: only beside local files.", path
        )
    return remote


@dataclasses.dataclass(eq=False)
class Restored:
    """What one checkpoint holds of loss scales, until these take it up.

    Attributes:
      path: of the checkpoint, for messages.
      scales: in the order in which they were first used; none if it holds none.
      weights: returns what was restored with them, as far as there is any by now; None
        once it is gone.
      taken: the places of those that loss scales go on from, by identity of the loss
        scale, which is kept alive; it may have one more state, under another strategy.
    """

    path: str
    scales: tuple[SavedScale, ...]
    weights: Callable[[], Handles | None]
    taken: dict[int, tuple[LossScale, int]] = dataclasses.field(default_factory=dict)

    def take(
        self, loss_scale: LossScale, fresh: Values, *, only_equal: bool = False
    ) -> Values | None:
        """Return the saved state of a loss scale, which is that of no other then.

        It can go on from one of its class with the values that it has itself. Of an
        equal one it does so even if one that is only of its class came before.
        """
        if id(loss_scale) not in self.taken:
            alike = [
                place
                for place, saved in enumerate(self.scales)
                if saved.kind == kind_of(loss_scale)
                and saved.values.keys() == fresh.keys()
            ]
            words = [saved.words for saved in self.scales]
            taken = {place for _, place in self.taken.values()}
            by_equals = {i for o, i in self.taken.values() if words_of(o) == words[i]}
            own = words_of(loss_scale)
            places = [i for i in alike if words[i] == own and i not in by_equals]
            if not only_equal:
                places += [i for i in alike if i not in taken]
            if not places:
                return None
            self.taken[id(loss_scale)] = (loss_scale, places[0])
        saved = self.scales[self.taken[id(loss_scale)][1]]
        return {**saved.values, **chosen_values(loss_scale)}

    def left(self) -> tuple[SavedScale, ...]:
        """Return what no loss scale has taken."""
        taken = {place for _, place in self.taken.values()}
        return tuple(s for i, s in enumerate(self.scales) if i not in taken)

    def refuse(self, loss_scale: LossScale) -> None:
        """Raise CheckpointMismatchError if what is left is of other loss scales."""
        for saved in self.left():
            raise mismatch(self.path, saved, loss_scale)

    def shares(self, weights: Handles) -> bool:
        """Return whether some of these weights were restored with it."""
        return not weights.keys().isdisjoint(self.weights() or ())

    def may_share(self, weights: Handles) -> bool:
        """Return whether that may be so, for all that is known of either."""
        own = self.weights()
        known = bool(own and weights)
        return own is not None and (not known or self.shares(weights))


# Until gradients of those weights are scaled, under whatever settings; at most so many,
# more than a program restores before it begins to train.
_restored: list[Restored] = []
_MOST = 32
_lock = renewed_lock()


def wait(
    scales: tuple[SavedScale, ...],
    path: str,
    weights: Callable[[], Handles | None] = dict,
) -> Restored:
    """Let loss scales go on as saved once they scale gradients of restored weights.

    What was restored to the same weights before waits in vain from now on, unless
    nothing is known now.

    Args:
      scales: in the order in which they were first used; none if the checkpoint holds
        none.
      path: of the checkpoint, for messages.
      weights: returns those restored with it; where there are none, any will do.
    """
    restored = Restored(path, scales, weights)
    now = weights() or {}
    with _lock:
        alive = [one for one in _restored if one.weights() is not None]
        same = [one for one in alive if one.shares(now)]
        others = [one for one in alive if one not in same]
        latest = same if same and not scales else [restored]
        _restored[:] = [*others, *latest][-_MOST:]
    return restored


def still_waiting(weights: Handles | None = None) -> tuple[SavedScale, ...]:
    """Return what was restored, with some weights if given, and has not been taken."""
    with _lock:
        concerned = [one for one in _restored if one.may_share(weights or {})]
        return tuple(saved for one in concerned for saved in one.left())


def resumed(
    loss_scale: LossScale,
    fresh: Values,
    weights: Handles | None = None,
    *,
    has_state: bool = False,
) -> Values | None:
    """Return the state that a loss scale goes on from; None: no checkpoint says.

    Args:
      loss_scale: that meets weights for the first time.
      fresh: what a new training begins with.
      weights: that it is to scale gradients of, as far as is known.
      has_state: whether it scales gradients of other weights already, and goes back to
        nothing but what was restored with one of these.

    Raises:
      CheckpointMismatchError: saved was the state of another loss scale.
    """
    known = weights or {}
    with _lock:
        latest = [*reversed(_restored)]
        restored = next((one for one in latest if one.shares(known)), None)
        if not has_state:
            likely = (one for one in latest if one.may_share(known))
            restored = restored or next(likely, None)
        elif restored is not None and id(loss_scale) in restored.taken:
            return None
        if restored is None:
            return None
        values = restored.take(loss_scale, fresh)
    if values is None:
        restored.refuse(loss_scale)
        if not has_state:
            say_fresh(loss_scale, fresh, restored.path)
    return values


def shared_out(
    restored: Restored, states: Sequence[Any], in_use: Any
) -> list[tuple[Any, Values]]:
    """Return states that exist, and the values that each of them goes back to.

    Args:
      restored: what was saved.
      states: of the training that was restored, in the order in which they were made.
      in_use: the state that gradients were last scaled by.

    Raises:
      CheckpointMismatchError: nothing of what was saved is for the state in use.
    """
    shared = []
    with _lock:
        for state in states:
            restored.take(state.loss_scale, state.fresh, only_equal=True)
        for state in sorted(states, key=lambda state: state is not in_use):
            values = restored.take(state.loss_scale, state.fresh)
            if values is not None:
                shared.append((state, values))
            elif state is in_use:
                restored.refuse(state.loss_scale)
    return shared


def saved_scale(loss_scale: LossScale, values: Values) -> SavedScale:
    """Return a state as it is to be saved."""
    return SavedScale(kind_of(loss_scale), words_of(loss_scale), dict(values))


def is_usable(scale: float) -> bool:
    """Return whether gradients can be multiplied by a scale, and divided again."""
    return 2.0**-126 <= scale < 2.0**128


def mismatch(
    path: str, saved: SavedScale, wanted: LossScale
) -> CheckpointMismatchError:
    """Return the error that names two loss scales."""
    return CheckpointMismatchError(
        f"The checkpoint {path} holds the state of {saved.kind} "
        f"({', '.join((saved.words, *saved.values))}), and this program scales losses "
        f"with {kind_of(wanted)} ({words_of(wanted)}). Resume with the same loss "
        "scale; or, to go on with another one, restore and save once with mixed "
        "precision off, which drops the state."
    )


def kind_of(loss_scale: LossScale) -> str:
    """Return what distinguishes loss scales whose states have nothing in common."""
    return type(loss_scale).__name__


def chosen_values(loss_scale: LossScale) -> Values:
    """Return what the program has chosen, whatever was saved."""
    is_constant = isinstance(loss_scale, StaticLossScale) and (
        type(loss_scale).adjust is LossScale.adjust
    )
    return loss_scale.initial_state() if is_constant else {}


def say_fresh(loss_scale: LossScale, initial: Values, path: str) -> None:
    """Say that a checkpoint holds no state, so that a loss scale starts fresh."""
    Code.NO_SCALE_IN_CHECKPOINT.warn(
        "The checkpoint %s holds no state of a loss scale: %s starts at %g.",
        path,
        kind_of(loss_scale),
        initial["scale"],
    )


def words_of(loss_scale: LossScale) -> str:
    """Return the words of a loss scale, where it has some."""
    try:
        return words_from_loss_scale(loss_scale)
    except ConfigError:
        return "the program's own"
