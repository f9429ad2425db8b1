"""Numbers as bits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollog.rules.number_set import NumberSet

numbers = st.integers(0, 5000) | st.integers(0, 10**18)


@given(added=st.lists(numbers), asked=st.lists(numbers))
def test_it_holds_what_was_added_and_nothing_else(added: list[int], asked: list[int]) -> None:
    found = NumberSet()
    for number in added:
        found.add(number)
    assert [number in found for number in added + asked] == [number in set(added) for number in added + asked]
