"""What is kept of a training, and files of it that are damaged."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_amp import DynamicLossScale, StaticLossScale, StatisticalLossScale
from tf_amp.errors import CheckpointMismatchError, UnreadableRecordError
from tf_amp.rewriting.resumed_plans import PlanRecord
from tf_amp.training import checkpoint_record, restored_scales
from tf_amp.training.checkpoint_record import (
    Record,
    records_from_text,
    text_from_records,
)
from tf_amp.training.restored_scales import SavedScale, saved_scale

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


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"tf_amp": 1', '"tf_amp": 2'),
        lambda text: text.replace("512.0", '"512"'),
        lambda text: text.replace('"low": "5"', '"low": "ff"'),
        lambda text: text.replace('"low": "5"', '"low": "no"'),
        lambda text: text.replace('"low": "5"', '"low": "-5"'),
        lambda text: text.replace('"count": 3', '"count": -3'),
        lambda text: text.replace('"count": 3', '"count": 3.5'),
        lambda text: text.replace('"count": 3', '"count": 99999999999999'),
        lambda text: text.replace("512.0", "0.0"),
        lambda text: text.replace("512.0", "-512.0"),
        lambda text: text.replace("512.0", "NaN"),
        lambda text: text.replace("512.0", "Infinity"),
        lambda text: text.replace("512.0", "1e300"),
        lambda text: text.replace('"kind"', '"kin"'),
    ],
)
def test_a_damaged_record_is_put_aside_with_one_warning(damage, tmp_path, caplog):
    model = tmp_path / "model.weights.h5"
    checkpoint_record.write_beside(model, RECORD)
    beside = checkpoint_record.path_beside(model)
    text = beside.read_text()
    assert damage(text) != text
    beside.write_text(damage(text))
    assert checkpoint_record.read_beside(model) == ()
    assert checkpoint_record.read_beside(model) == ()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "damaged" in caplog.text
    assert (tmp_path / "model.weights.h5.tf_amp.json.corrupt").exists()
    assert not beside.exists()
    checkpoint_record.write_beside(model, RECORD)
    assert checkpoint_record.read_beside(model) == (RECORD,)


def test_bytes_that_are_no_text_are_put_aside(tmp_path, caplog):
    checkpoint_record.path_beside(tmp_path / "m").write_bytes(b"\xff\xfe\x00")
    assert checkpoint_record.read_beside(tmp_path / "m") == ()
    assert "damaged" in caplog.text


def test_the_record_before_stays_until_the_next_but_one(tmp_path):
    path = tmp_path / "m.keras"
    kept = [Record((SCALE,), step=str(i)) for i in range(3)]
    # A step may be saved twice.
    for record in (*kept, kept[2]):
        checkpoint_record.write_beside(path, record)
    assert checkpoint_record.read_beside(path) == (kept[2], kept[1])
    assert [p.name for p in tmp_path.iterdir()] == ["m.keras.tf_amp.json"]


def test_nothing_to_keep_leaves_nothing_beside(tmp_path):
    checkpoint_record.write_beside(tmp_path / "m", RECORD)
    checkpoint_record.write_beside(tmp_path / "m", Record())
    assert list(tmp_path.iterdir()) == []
    assert checkpoint_record.read_beside(tmp_path / "m") == ()


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path, caplog):
    for _ in range(2):
        checkpoint_record.write_beside(tmp_path / "absent" / "m", RECORD)
    assert caplog.text.count("is not kept beside") == 1


def test_a_record_is_json_that_people_can_read(tmp_path):
    checkpoint_record.write_beside(tmp_path / "m", RECORD)
    told = json.loads(checkpoint_record.path_beside(tmp_path / "m").read_text())
    assert told["records"][0]["loss_scales"][0]["values"] == VALUES


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setattr(restored_scales, "_restored", [])
    return restored_scales.wait


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
        resumed = restored_scales.resumed(loss_scale, fresh(loss_scale))
        assert (resumed["scale"], resumed["good_steps"]) == (expected, 3)
    assert restored_scales.still_waiting() == ()


def test_another_loss_scale_than_the_saved_one_is_refused_by_both_names(waiting):
    waiting((saved(DynamicLossScale(), 8.0),), "some/path")
    with pytest.raises(CheckpointMismatchError) as caught:
        restored_scales.resumed(StatisticalLossScale(), fresh(StatisticalLossScale()))
    for word in ("some/path", "DynamicLossScale", "StatisticalLossScale"):
        assert word in str(caught.value)


def test_a_state_of_other_values_is_refused(waiting):
    waiting((SCALE,), "path")
    with pytest.raises(
        CheckpointMismatchError, match="good_steps, skipped_steps, finite"
    ):
        restored_scales.resumed(DynamicLossScale(), fresh(DynamicLossScale()))


def test_a_checkpoint_without_a_state_is_told_of(waiting, caplog):
    waiting((), "some/path")
    initial = fresh(DynamicLossScale())
    assert restored_scales.resumed(DynamicLossScale(), initial) == initial
    assert "some/path holds no state" in caplog.text
    assert "starts at 32768" in caplog.text


def test_nothing_is_told_where_nothing_was_restored(waiting, caplog):
    initial = fresh(DynamicLossScale())
    assert restored_scales.resumed(DynamicLossScale(), initial) == initial
    assert caplog.text == ""


def test_a_number_chosen_by_the_program_goes_before_the_saved_one(waiting):
    waiting((saved(StaticLossScale(64.0), 64.0),), "path")
    chosen = StaticLossScale(128.0)
    resumed = restored_scales.resumed(chosen, fresh(chosen))
    assert (resumed["scale"], resumed["good_steps"]) == (128.0, 3)


def test_a_damaged_text_names_what_is_wrong():
    with pytest.raises(UnreadableRecordError, match="reads 1"):
        records_from_text('{"tf_amp": 7, "records": []}')
