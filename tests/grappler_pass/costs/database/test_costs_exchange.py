"""Files of measured costs: written whole, read with distrust."""

import contextlib
import json
import os
import pathlib
import pickle
import time

import pytest

from grappler_pass.costs.database.exchange import (
    ExportError,
    read_export,
    write_export,
)
from grappler_pass.costs.database.price_list import Measured, Sample
from grappler_pass.costs.database.records import CostRow, Verdict
from tests.costs_examples import (
    DEVICE,
    MATMUL,
    ROWS_OF_ALL_KINDS,
    TRANSPOSE,
    VERSION,
)


def test_an_export_can_be_piped(tmp_path):
    read, write = os.pipe()
    with contextlib.closing(os.fdopen(read)) as lines:
        write_export(pathlib.Path(f"/dev/fd/{write}"), ROWS_OF_ALL_KINDS)
        os.close(write)
        assert len(lines.readlines()) == 1 + len(ROWS_OF_ALL_KINDS)


def test_an_export_goes_where_a_link_leads(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    write_export(link, ROWS_OF_ALL_KINDS)
    assert link.is_symlink()
    assert len(read_export(tmp_path / "file").rows) == len(ROWS_OF_ALL_KINDS)


def test_an_export_made_by_the_first_version_is_read(tmp_path):
    file = tmp_path / "costs.jsonl"
    verdict = {
        "device": DEVICE,
        "tensorflow": VERSION,
        "fingerprint": "0f3c",
        "faster": True,
        "seconds_before": 1.25,
        "seconds_after": 1.0,
        "when": 1e9,
    }
    header = {"format": "tf-amp costs", "version": 1, "rows": 2}
    lines = [json.dumps(each) for each in (header, GOOD, verdict)]
    file.write_text("".join(f"{line}\n" for line in lines))
    export = read_export(file)
    assert export.refused == ()
    assert set(export.rows) == {
        CostRow(
            DEVICE, VERSION, Measured(MATMUL, "float32", Sample(1e-3, 1e-3, 0, 1, 0))
        ),
        Verdict(DEVICE, VERSION, "0f3c", True, 1.25, 1.0, 1e9),
    }
    again = tmp_path / "again"
    write_export(again, export.rows)
    assert [json.loads(line) for line in again.read_text().splitlines()] == [
        header,
        GOOD,
        verdict,
    ]


GOOD = {
    "device": DEVICE,
    "tensorflow": VERSION,
    "probe": MATMUL.key,
    "dtype": "float32",
    "seconds": 1e-3,
    "cold_seconds": 1e-3,
    "spread": 0.0,
    "count": 1,
    "when": 0,
}
GARBAGE = {
    "not JSON": ["{", "[1, 2", "\x00\xff", "nothing", "[" * 100_000],
    "not a row": ["[]", "1", "null", '"text"'],
    "unknown column": [{**GOOD, "price": 1}],
    "device": [{**GOOD, "device": each} for each in ("", 7, None, "a\nb", "\ud800")],
    "tensorflow": [{**GOOD, "tensorflow": "2" * 1000}],
    "dtype": [{**GOOD, "dtype": each} for each in ("int8", None, ["float32"], {})],
    "seconds": [
        {**GOOD, "seconds": each}
        for each in (0, -1.0, "1", True, None, float("nan"), float("inf"), 10**400, 1e9)
    ],
    "cold_seconds": [
        {k: v for k, v in GOOD.items() if k != "cold_seconds"},
        {**GOOD, "cold_seconds": 1e6},
    ],
    "spread": [{**GOOD, "spread": each} for each in (-0.1, float("nan"), [], 1000.0)],
    "count": [{**GOOD, "count": each} for each in (0, 1.5, True, 2**70, "3")],
    "when": [{**GOOD, "when": each} for each in (-1, 1e15, "now", 2e11)] + [
        {"device": "a", "tensorflow": "b", "fingerprint": "c", "faster": True,
         "seconds_before": 1, "seconds_after": 1, "when": time.time() + 1e6}
    ],
    "probe": [
        {**GOOD, "probe": each}
        for each in (
            None,
            7,
            "",
            "{}",
            "[" * 100_000,
            MATMUL.key.replace("784", '"784"'),
            MATMUL.key.replace("784", "-784"),
            MATMUL.key.replace("784", "Infinity"),
            MATMUL.key.replace('"*"', '"colors"'),
            MATMUL.key.replace("MatMul", "__import__('os')"),
            MATMUL.key.replace(",", ", "),
            TRANSPOSE.key.replace("[1,0]", "[[1],0]"),
            TRANSPOSE.key.replace("[[1,", "[[9,"),
        )
    ],
    "seconds_before": [
        {"device": "a", "tensorflow": "b", "fingerprint": "c", "faster": True,
         "seconds_before": 0, "seconds_after": 1, "when": 1}
    ],
    "faster": [
        {"device": "a", "tensorflow": "b", "fingerprint": "c", "faster": "yes",
         "seconds_before": 1, "seconds_after": 1, "when": 1}
    ],
}  # fmt: skip


@pytest.mark.parametrize("reason", GARBAGE)
def test_a_row_that_cannot_be_believed_is_refused_with_its_reason(tmp_path, reason):
    wrong = [
        row if isinstance(row, str) else json.dumps(row) for row in GARBAGE[reason]
    ]
    lines = [json.dumps({"format": "tf-amp costs", "version": 1}), json.dumps(GOOD)]
    file = tmp_path / "costs.jsonl"
    file.write_text("\n".join([*lines, *wrong]), encoding="utf-8")
    export = read_export(file)
    assert len(export.rows) == 1
    assert export.missing == 0
    assert [refusal.line for refusal in export.refused] == [*range(3, 3 + len(wrong))]
    for refusal in export.refused:
        assert refusal.reason.startswith(reason)
        assert len(refusal.reason) < 200
    assert {row.device for row in export.rows} == {DEVICE}


@pytest.mark.parametrize(
    ("changed", "bound"),
    [
        ({"seconds": 1e299}, "more than 0 and at most 100000"),
        ({"spread": 1000.0}, "0 or more and at most 10"),
        ({"when": 2e11}, "a day from now"),
    ],
)
def test_a_row_out_of_range_is_told_the_bound(tmp_path, changed, bound):
    file = tmp_path / "costs.jsonl"
    header = {"format": "tf-amp costs", "version": 1}
    file.write_text("\n".join(map(json.dumps, [header, {**GOOD, **changed}])))
    (refusal,) = read_export(file).refused
    assert refusal.reason.endswith(bound)


@pytest.mark.parametrize("kept", range(0, 6))
def test_a_file_cut_off_says_how_many_rows_are_missing(tmp_path, kept):
    file = tmp_path / "costs.jsonl"
    write_export(file, ROWS_OF_ALL_KINDS)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: 1 + kept]) + lines[1 + kept][:20])
    export = read_export(file)
    assert len(export.rows) == kept
    assert [refusal.line for refusal in export.refused] == [kept + 2]
    assert export.missing == 5 - kept


def test_an_export_that_fails_leaves_the_old_file(tmp_path):
    file = tmp_path / "costs.jsonl"
    write_export(file, ROWS_OF_ALL_KINDS)
    content = file.read_bytes()
    unprintable = ROWS_OF_ALL_KINDS[0]._replace(device=object())
    with pytest.raises(TypeError):
        write_export(file, [ROWS_OF_ALL_KINDS[0], unprintable])
    with pytest.raises(OSError, match="missing"):
        write_export(tmp_path / "missing" / "costs.jsonl", ROWS_OF_ALL_KINDS)
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"notes\n",
        b"[]\n",
        b'{"format": "other"}\n',
        pickle.dumps({"a": 1}),
        b"[" * 9,
    ],
)
def test_a_file_that_is_no_export_is_refused(tmp_path, content):
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ExportError, match="is no export of measured costs"):
        read_export(file)
