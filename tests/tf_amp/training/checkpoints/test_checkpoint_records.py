"""What is kept of a training, and files of it that are damaged."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_amp import DynamicLossScale, StatisticalLossScale
from tf_amp.errors import CheckpointMismatchError
from tf_amp.rewriting.host import PlanRecord
from tf_amp.training import checkpoint_record
from tf_amp.training.checkpoint_record import (
    Record,
    SavedScale,
    records_from_text,
    saved_scale,
    text_from_records,
)

VALUES = {"scale": 512.0, "good_steps": 3, "skipped_steps": 1, "finite": 1}
SCALE = SavedScale("DynamicLossScale", "dynamic", VALUES)
RECORD = Record((SCALE,), {"k": PlanRecord("step", "5", 3)}, False, "key")

numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(width=32, allow_nan=False)
scales = st.builds(
    SavedScale,
    kind=st.text(),
    words=st.text(),
    values=st.dictionaries(st.text(), numbers),
)
plans = st.integers(0, 99).flatmap(
    lambda count: st.builds(
        PlanRecord,
        graph=st.text(),
        low=st.integers(0, 2**count - 1).map("{:x}".format),
        count=st.just(count),
    )
)
records = st.builds(
    Record,
    loss_scales=st.lists(scales, max_size=2).map(tuple),
    plans=st.dictionaries(st.text(), plans, max_size=2),
    has_optimizer=st.booleans(),
    step=st.text(),
)


@settings(max_examples=50)
@given(st.lists(records, max_size=2).map(tuple))
def test_records_come_back_equal(given_records):
    assert records_from_text(text_from_records(given_records)) == given_records


# What becomes of the text, and what is said of it.
DAMAGES = [
    (lambda text: text[: len(text) // 2], ""),
    (lambda text: "", ""),
    (lambda text: "[]", ""),
    (lambda text: "\xff\xfe\x00", "invalid start byte"),
    (lambda text: text.replace('"kind"', '"kin"'), "kin"),
    (lambda text: text.replace('"tf_amp": 1', '"tf_amp": 2'), "is 2; .* reads 1"),
    (lambda text: text.replace("512.0", '"512"'), "'512', no number"),
    *[
        (lambda text, scale=scale: text.replace("512.0", scale), "the scale of Dynamic")
        for scale in ("0.0", "-512.0", "NaN", "Infinity", "1e300")
    ],
    *[
        (lambda text, low=low: text.replace('"low": "5"', f'"low": "{low}"'), said)
        for low, said in (("ff", "too many"), ("no", "invalid"), ("-5", "too many"))
    ],
    *[
        (lambda text, n=n: text.replace('"count": 3', f'"count": {n}'), f"{n} slots")
        for n in ("-3", "3.5", "99999999999999")
    ],
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES)
def test_a_damaged_record_is_put_aside_with_one_warning(damage, said, tmp_path, caplog):
    model = tmp_path / "model.weights.h5"
    checkpoint_record.write_beside(model, RECORD)
    beside = checkpoint_record.path_beside(model)
    text = beside.read_text()
    assert damage(text) != text
    beside.write_text(damage(text), encoding="latin-1")
    assert checkpoint_record.read_beside(model) == ()
    assert checkpoint_record.read_beside(model) == ()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert re.search(rf"damaged \(.*{said}", caplog.text)
    assert (tmp_path / "model.weights.h5.tf_amp.json.corrupt").exists()
    assert not beside.exists()
    checkpoint_record.write_beside(model, RECORD)
    assert checkpoint_record.read_beside(model) == (RECORD,)


def test_the_record_before_stays_until_the_next_but_one(tmp_path):
    path = tmp_path / "m.keras"
    kept = [Record((SCALE,), step=str(i)) for i in range(3)]
    # A step may be saved twice.
    for record in (*kept, kept[2]):
        checkpoint_record.write_beside(path, record)
    assert checkpoint_record.read_beside(path) == (kept[2], kept[1])
    beside = checkpoint_record.path_beside(path)
    assert [*tmp_path.iterdir()] == [beside]
    told = json.loads(beside.read_text())
    assert told["records"][0]["loss_scales"][0]["values"] == VALUES


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path, caplog):
    for _ in range(2):
        checkpoint_record.write_beside(tmp_path / "absent" / "m", RECORD)
    assert caplog.text.count("is not kept beside") == 1


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setattr(checkpoint_record, "_restored", [])
    return checkpoint_record.wait


def saved(loss_scale, scale):
    values = {**VALUES, **loss_scale.initial_state(), "scale": scale}
    return saved_scale(loss_scale, values)


def fresh(loss_scale):
    return {**dict.fromkeys(VALUES, 0), **loss_scale.initial_state()}


def test_states_begin_as_saved_each_with_its_own(waiting):
    slow, fast = DynamicLossScale(growth_interval=9), DynamicLossScale()
    statistical = StatisticalLossScale()
    told = [saved(one, 2.0**i) for i, one in enumerate((fast, statistical, slow))]
    waiting(tuple(told), "path")
    for loss_scale, expected in ((slow, 4.0), (statistical, 2.0), (fast, 1.0)):
        resumed = checkpoint_record.resumed(loss_scale, fresh(loss_scale))
        assert (resumed["scale"], resumed["good_steps"]) == (expected, 3)
    assert checkpoint_record.still_waiting() == ()


def test_a_state_of_other_values_is_refused(waiting):
    waiting((SCALE,), "path")
    with pytest.raises(
        CheckpointMismatchError, match="good_steps, skipped_steps, finite"
    ):
        checkpoint_record.resumed(DynamicLossScale(), fresh(DynamicLossScale()))
