"""A search by halves finds all culprits and no other, in few tries."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tf_amp.tools.verify.verifying import culprits_among


class _Trial:
    """Holds once all culprits are cleared, and counts how often it is asked."""

    def __init__(self, culprits):
        self.culprits = frozenset(culprits)
        self.tries = 0

    def holds_with(self, cleared):
        self.tries += 1
        assert len(set(cleared)) == len(cleared)
        return self.culprits <= set(cleared)


@st.composite
def _cases(draw):
    count = draw(st.integers(1, 300))
    culprits = st.lists(st.integers(0, count - 1), min_size=1, max_size=6, unique=True)
    return count, sorted(draw(culprits))


@given(_cases())
@settings(max_examples=300)
def test_culprits_are_found_exactly_and_in_order(case):
    count, culprits = case
    trial = _Trial(culprits)
    assert culprits_among(range(count), trial.holds_with) == tuple(culprits)
    # Each takes a search by halves and one question whether there are more; besides it
    # is asked once whether all of them together would do, and whether any is needed.
    assert trial.tries <= 2 + len(culprits) * (math.ceil(math.log2(count)) + 1)


def test_nothing_is_to_blame_where_all_is_well():
    assert culprits_among(range(9), _Trial([]).holds_with) == ()


def test_nobody_is_to_blame_for_what_clearing_all_does_not_fix():
    assert culprits_among(range(9), _Trial([10]).holds_with) is None


def test_one_of_two_that_fix_it_alone_is_enough():
    found = culprits_among(range(20), lambda cleared: 3 in cleared or 15 in cleared)
    assert found == (3,)
