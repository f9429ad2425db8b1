"""When a version is stored in full, and which forms lead to a version, by hand and against a search of all ways."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.chains import (
    StoredForm,
    VersionPair,
    WhyFull,
    is_cumulative_due,
    route,
    why_full,
)

full_bytes = 1000


def pair_of(version: int) -> VersionPair:
    return VersionPair(version, f"{version:064x}")


def full(version: int, *, again: bool = False) -> StoredForm:
    return StoredForm(
        pair=pair_of(version), name=f"full-{version}{'-again' * again}", stored_bytes=full_bytes
    )


def patch(version: int, *, base: int | None = None, stored_bytes: int = 10) -> StoredForm:
    return StoredForm(
        pair=pair_of(version),
        name=f"patch-{version}",
        stored_bytes=stored_bytes,
        base=pair_of(version - 1 if base is None else base),
    )


def names(forms: list[StoredForm]) -> list[str]:
    return [form.name for form in forms]


def test_a_version_is_a_patch_unless_something_speaks_for_a_full_form() -> None:
    assert why_full(1, [full(0)]) is None
    assert why_full(15, [full(0), *(patch(version) for version in range(1, 15))]) is None


@pytest.mark.parametrize(
    ("version", "chain", "is_rebase", "reason"),
    [
        (0, None, False, WhyFull.FIRST),
        (5, [full(4)], True, WhyFull.REBASE),
        (5, None, False, WhyFull.LOST_BASE),
        (5, [], False, WhyFull.LOST_BASE),
        (256, [full(255)], False, WhyFull.PERIOD),
        (512, [full(256), patch(511, base=256)], False, WhyFull.PERIOD),
        (5, [full(0), patch(4, stored_bytes=501)], False, WhyFull.OUTGROWN),
    ],
)
def test_what_speaks_for_a_full_form_is_named(
    version: int, chain: list[StoredForm] | None, *, is_rebase: bool, reason: WhyFull
) -> None:
    assert why_full(version, chain, is_rebase=is_rebase) is reason


def test_patches_may_have_half_of_the_bytes_of_the_full_form_the_next_one_included() -> None:
    chain = [full(0), patch(1, stored_bytes=200), patch(2, stored_bytes=200)]
    assert why_full(3, chain) is None
    assert why_full(3, chain, patch_bytes=100) is None
    assert why_full(3, chain, patch_bytes=101) is WhyFull.OUTGROWN
    assert (
        why_full(1, [full(0)], patch_bytes=501) is WhyFull.OUTGROWN
    )  # such as float32, of which most changes


def test_the_period_can_be_another_also_from_one_version_to_the_next() -> None:
    chain = [full(0), *(patch(version) for version in range(1, 6))]
    assert why_full(6, chain, full_every=7) is None
    assert why_full(6, chain, full_every=6) is WhyFull.PERIOD
    assert why_full(6, chain, full_every=4) is WhyFull.PERIOD  # which it was not at version 4
    assert why_full(1, [full(0)], full_every=1) is WhyFull.PERIOD


def test_every_16th_patch_is_stored_as_changes_since_the_full_form_too_unless_it_is_the_first() -> None:
    chain = [full(5), *(patch(version) for version in range(6, 16))]
    assert is_cumulative_due(16, chain)
    assert not is_cumulative_due(15, chain[:-1])
    assert not is_cumulative_due(16, [full(15)]), "it is of the full form as it is"
    assert is_cumulative_due(32, [full(5), patch(16, base=5), *(patch(version) for version in range(17, 32))])


forms = [full(14), patch(15), patch(16), full(16), patch(17), patch(18)]


@pytest.mark.parametrize(
    ("target", "have", "expected"),
    [
        (18, 18, []),
        (18, 17, ["patch-18"]),
        (18, 16, ["patch-17", "patch-18"]),
        (18, 14, ["patch-15", "patch-16", "patch-17", "patch-18"]),  # 16 is stored as a patch as well
        (18, 13, ["full-16", "patch-17", "patch-18"]),
        (18, None, ["full-16", "patch-17", "patch-18"]),
        (16, None, ["full-16"]),
        (15, None, ["full-14", "patch-15"]),
        (15, 18, ["full-14", "patch-15"]),  # a reader goes back by way of a full form
        (14, 18, ["full-14"]),
    ],
)
def test_a_reader_takes_its_own_chain_or_the_newest_full_form(
    target: int, have: int | None, expected: list[str]
) -> None:
    found = route(forms, pair_of(target), None if have is None else pair_of(have))
    assert names(found) == expected


def test_a_copy_of_the_same_number_and_other_tensors_is_no_base() -> None:
    other = VersionPair(17, "ff" * 32)
    assert names(route(forms, pair_of(18), other)) == ["full-16", "patch-17", "patch-18"]


def test_a_chain_of_full_forms_alone_needs_the_last_one() -> None:
    assert names(route([full(0), full(1), full(2)], pair_of(2), pair_of(1))) == ["full-2"]


def test_what_was_published_again_counts_last() -> None:
    assert names(route([full(0), patch(1), full(1, again=True)], pair_of(1))) == ["full-1-again"]
    assert names(route([full(0), full(0, again=True)], pair_of(0))) == ["full-0-again"]
    # A reader that has version 0 still takes the patch, which is smaller.
    assert names(route([full(0), patch(1), full(1, again=True)], pair_of(1), pair_of(0))) == ["patch-1"]


def test_an_adapter_has_the_tensors_of_version_0_as_its_base() -> None:
    adapters = [full(0), *(patch(version, base=0) for version in (1, 2, 3))]
    assert names(route(adapters, pair_of(3))) == ["full-0", "patch-3"]
    assert names(route(adapters, pair_of(3), pair_of(0))) == ["patch-3"]
    assert names(route(adapters, pair_of(3), pair_of(2))) == ["full-0", "patch-3"]


@pytest.mark.parametrize("base", [3, 4, 2**62])
def test_a_base_that_is_not_lower_is_refused(base: int) -> None:
    for have in (None, pair_of(1)):
        with pytest.raises(WeightsError, match=r"'patch-3'.*which is not lower.*load a full form"):
            route([full(1), patch(3, base=base)], pair_of(3), have)


def test_bases_that_lead_round_in_a_circle_are_refused() -> None:
    circle = [patch(3, base=2), patch(2, base=3)]
    with pytest.raises(WeightsError, match="not lower"):
        route(circle, pair_of(3))


def test_a_version_to_which_nothing_leads_is_named_with_what_is_missing() -> None:
    with pytest.raises(WeightsError, match=r"of version 9 \(0+\) cannot be rebuilt: no form of version 9 "):
        route(forms, pair_of(9))
    with pytest.raises(WeightsError, match=r"of version 2 \(.*no form of version 1 .*publish this one again"):
        route([patch(2)], pair_of(2))


@given(st.data())
def test_a_route_is_found_where_one_is_there_and_leads_to_the_version(data: st.DataObject) -> None:
    steps = st.integers(0, 7).flatmap(
        lambda version: (
            st.builds(full, st.just(version))
            if version == 0
            else st.builds(full, st.just(version))
            | st.builds(patch, st.just(version), base=st.integers(0, version - 1))
        )
    )
    stored = data.draw(st.lists(steps, max_size=12, unique_by=lambda form: (form.pair, form.base is None)))
    target = pair_of(data.draw(st.integers(0, 7)))
    have = data.draw(st.none() | st.integers(0, 7).map(pair_of))
    if target not in reachable(stored, have):
        with pytest.raises(WeightsError):
            route(stored, target, have)
        return
    way = route(stored, target, have)
    at = have
    for form in way:
        assert form.base in {None, at}
        at = form.pair
    assert at == target
    assert all(form.base is not None for form in way[1:])
    if way and way[0].base is None:  # the newest full form: none stands between it and the version
        assert not {form.pair for form in way[1:]} & {form.pair for form in stored if form.base is None}


def reachable(stored: list[StoredForm], have: VersionPair | None) -> set[VersionPair]:
    found = {have} if have else set()
    found |= {form.pair for form in stored if form.base is None}
    waiting = deque(found)
    while waiting:
        at = waiting.popleft()
        news = {form.pair for form in stored if form.base == at} - found
        found |= news
        waiting += news
    return found


@dataclass
class Publisher:
    """Publishes versions by the rules; `lost` ones have no base at hand."""

    full_every: int
    forms: list[StoredForm] = field(default_factory=list)

    def publish(self, version: int, patch_bytes: int, *, is_lost: bool) -> None:
        chain = None if is_lost or not version else route(self.forms, pair_of(version - 1))
        reason = why_full(version, chain, full_every=self.full_every) or why_full(
            version, chain, full_every=self.full_every, patch_bytes=patch_bytes
        )
        self.forms.append(full(version) if reason else patch(version, stored_bytes=patch_bytes))


@given(
    st.integers(1, 16),
    st.lists(st.tuples(st.integers(1, 700), st.sampled_from([False, False, False, True])), max_size=60),
)
def test_a_joiner_needs_few_forms_and_a_reader_that_keeps_up_one(
    full_every: int, published: list[tuple[int, bool]]
) -> None:
    publisher = Publisher(full_every)
    for version, (patch_bytes, is_lost) in enumerate(published):
        publisher.publish(version, patch_bytes, is_lost=is_lost)
    for version in range(len(published)):
        first, *patches = route(publisher.forms, pair_of(version))
        assert first.base is None
        assert len(patches) < full_every
        assert 2 * sum(form.stored_bytes for form in patches) <= first.stored_bytes
    for old, new in pairwise(range(len(published))):
        assert len(route(publisher.forms, pair_of(new), pair_of(old))) == 1
