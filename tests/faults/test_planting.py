"""Faults can be planted in the sources as they are, and it is known what finds them.

Whether tests find them is asked by `python -m tests.faults`, which takes hours.
"""

from __future__ import annotations

import collections

import pytest

from tests.faults import table
from tests.faults.fault import Fault, all_faults
from tests.processes import ROOT


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.sentence)
def test_a_fault_can_be_planted_and_asks_tests_that_exist(fault: Fault) -> None:
    sound = (ROOT / fault.path).read_text()
    with_fault = fault.planted_in(sound)
    assert with_fault != sound
    compile(with_fault, fault.path, "exec")
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists()
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


def test_no_two_faults_have_one_sentence() -> None:
    counts = collections.Counter(fault.sentence for fault in all_faults())
    assert not [sentence for sentence, count in counts.items() if count > 1]


def test_the_table_has_a_row_of_tests_for_each_fault_and_no_other() -> None:
    rows = table.read()
    assert [*rows] == [fault.sentence for fault in all_faults()]
    assert [sentence for sentence, row in rows.items() if not row.count] == []


def test_a_text_that_is_not_there_once_is_refused() -> None:
    fault = Fault("One is two.", "one.py", (("one", "two"),), ("tests",))
    assert fault.planted_in("one") == "two"
    for source in ("", "one one"):
        with pytest.raises(ValueError, match=f"occurs {source.count('one')} times"):
            fault.planted_in(source)
