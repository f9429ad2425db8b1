"""A publisher that stores versions as patches: where it pays, bit by bit, and in full where nothing else is safe."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.exports import export_of
from support.patched_versions import are_equal, first_tensors, found_at, next_tensors, versions_of

from rollog.kernel.errors import EngineError, WeightsError
from rollog.kernel.versions.blocks import segment_elements
from rollog.kernel.versions.copies import VersionCopy
from rollog.kernel.versions.patches import encode
from rollog.kernel.versions.shards import shard_bytes
from rollog.kernel.versions.tensors import TensorSpec
from rollog.kernel.weights import WeightsStore
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.noted_changes import NotedChanges
from trainer.publishing import PublishedWeights, WeightsPublisher

if TYPE_CHECKING:
    from pathlib import Path

    from support.patched_versions import Tensors

    from rollog.kernel.versions.tensors import TensorSink
    from schemas import WeightVersion


both_ways = pytest.mark.parametrize("most_kept_bytes", [shard_bytes, 0])
"""Compared with the version before from two copies, and while the one copy is overwritten."""


class HoldsTensors(SimulatedTrainingEngine):
    """An engine whose weights a test sets."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self.start("no model")
        self.tensors = tensors

    def export_weights(self, sink: TensorSink | None) -> None:
        assert sink is not None
        export_of(self.tensors)(sink)


def publisher_of(
    store: WeightsStore,
    identity: str = "content",
    *,
    patches: bool = True,
    most_kept_bytes: int = shard_bytes,
) -> WeightsPublisher:
    return WeightsPublisher(store, lambda: identity, patches=patches, most_kept_bytes=most_kept_bytes)


def all_forms(publisher: WeightsPublisher, version: int, tensors: Tensors) -> PublishedWeights:
    return publisher.write(publisher.seal(version, HoldsTensors(tensors)))


def published(publisher: WeightsPublisher, version: int, tensors: Tensors) -> WeightVersion:
    return all_forms(publisher, version, tensors).notice


def numbers_stored_in_full(notices: list[WeightVersion]) -> list[int]:
    return [notice.version for notice in notices if notice.base is None]


@both_ways
def test_version_0_is_full_every_16th_also_the_changes_since_it_and_all_come_back(
    tmp_path: Path, most_kept_bytes: int
) -> None:
    store = WeightsStore((tmp_path / "store").as_uri())
    publisher, versions = publisher_of(store, most_kept_bytes=most_kept_bytes), versions_of(35)
    forms = [all_forms(publisher, number, tensors) for number, tensors in enumerate(versions)]

    assert numbers_stored_in_full([each.notice for each in forms]) == [0]
    assert [number for number, each in enumerate(forms) if each.cumulative is not None] == [16, 32]
    copy = VersionCopy(tmp_path / "copy")
    for number, (form, tensors) in enumerate(zip(forms, versions, strict=True)):
        assert are_equal(found_at(store.bring(form.notice, copy)), tensors)
        for notice in form.notices if number % 8 == 0 else ():
            assert are_equal(found_at(store.fetch(notice, tmp_path / "joiner")), tensors)
    full, patch = forms[0].notice.stored_bytes, forms[1].notice.stored_bytes
    assert patch < 0.05 * full
    assert forms[16].cumulative is not None
    assert forms[16].cumulative.stored_bytes < 0.5 * 16 * patch


@pytest.mark.parametrize("is_full", [True, False])
def test_a_version_is_written_behind_copies_for_which_training_waits(tmp_path: Path, is_full: bool) -> None:
    publisher = publisher_of(WeightsStore((tmp_path / "store").as_uri()), patches=not is_full)
    first, second = versions_of(2)
    all_forms(publisher, 0, first)
    engine = HoldsTensors(second)
    sealed = publisher.seal(1, engine)
    with ThreadPoolExecutor(1) as pool:
        with engine.way.copying():
            written = pool.submit(publisher.write, sealed)
            assert not wait([written], timeout=0.2).done
        assert (written.result().notice.base is None) == is_full


def test_who_comes_late_reads_the_full_form_the_cumulative_patch_and_those_since(tmp_path: Path) -> None:
    store = WeightsStore((tmp_path / "store").as_uri())
    publisher, versions = publisher_of(store), versions_of(36)
    forms = [all_forms(publisher, number, tensors) for number, tensors in enumerate(versions)]
    needed = [forms[0].notice, forms[32].cumulative, *(each.notice for each in forms[33:])]
    names = {name for notice in needed if notice is not None for name in store.file_names(notice)}
    for name in set(store.names()) - names:
        store.delete(name)
    assert are_equal(found_at(store.fetch(forms[35].notice, tmp_path / "joiner")), versions[35])


@pytest.mark.parametrize("end", ["begin", "cumulative", "full disk"])
def test_without_what_changed_since_the_full_form_a_version_is_stored_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    publisher, versions = publisher_of(store), versions_of(34)
    forms = [all_forms(publisher, number, tensors) for number, tensors in enumerate(versions[:8])]

    def fails(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        if end == "begin":
            patched.setattr(os, "pwrite", fails)
        forms.append(all_forms(publisher, 8, versions[8]))
    forms += [all_forms(publisher, number, versions[number]) for number in range(9, 16)]
    with monkeypatch.context() as patched:
        if end == "full disk":
            patched.setattr(os, "pwrite", fails)
        if end == "cumulative":
            patched.setattr(os, "pread", lambda *_: b"")
        forms.append(all_forms(publisher, 16, versions[16]))
    forms += [all_forms(publisher, number, versions[number]) for number in range(17, 34)]

    assert numbers_stored_in_full([each.notice for each in forms]) == [0, 16]
    assert [number for number, each in enumerate(forms) if each.cumulative is not None] == [32]
    assert sum("changes since the last full form are not kept" in each for each in caplog.messages) == 1
    notices = [notice for each in forms for notice in each.notices]
    assert store.orphans([notice.name for notice in notices]) == []
    for number in (16, 33):
        assert are_equal(found_at(store.fetch(forms[number].notice, tmp_path / "joiner")), versions[number])


def in_their_shards(place: Path, store: WeightsStore, notice: WeightVersion | None) -> list[bytes]:
    assert notice is not None
    return [
        (place / name).read_bytes() for name in store.file_names(notice) if not name.endswith(".manifest")
    ]


@pytest.mark.parametrize(
    ("when", "largest_share"),
    [
        ("after each", 0.25),
        ("at the end of one", 0.5),
        ("before it", 0.25),
        ("bit by bit", 0.6),
        ("with a full disk", 1.0),
        ("never", 1.0),
    ],
)
def test_a_cumulative_patch_is_the_same_whatever_was_folded_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
    largest_share: float,
) -> None:
    place = tmp_path / "store"
    store = WeightsStore(str(place))
    publisher, tidied, versions = publisher_of(store), publisher_of(store), versions_of(17)
    read: list[int] = []
    pread = os.pread

    def counts(file: int, num_bytes: int, offset: int) -> bytes:
        if num_bytes:
            read.append(num_bytes)
        return pread(file, num_bytes, offset)

    def fails(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for number, tensors in enumerate(versions[:16]):
        all_forms(publisher, number, tensors)
        all_forms(tidied, number, tensors)
        if when == "after each" or {"at the end of one": 11, "before it": 15}.get(when) == number:
            tidied.tidy()
        elif when == "bit by bit":
            # A tensor or two each time; it is asked before each, and before each segment.
            tidied.tidy(iter((*(False,) * 4, *(True,) * 100)).__next__)
        elif when == "with a full disk":
            with monkeypatch.context() as patched:
                patched.setattr(os, "pwrite", fails)
                tidied.tidy()
        elif when == "never":
            tidied.tidy(lambda: True)
    monkeypatch.setattr(os, "pread", counts)
    expected = all_forms(publisher, 16, versions[16]).cumulative
    num_read = len(read)
    found = all_forms(tidied, 16, versions[16]).cumulative
    assert in_their_shards(place, store, found) == in_their_shards(place, store, expected)
    said = [message for message in caplog.messages if "wait as they are" in message]
    assert len(said) == (when == "with a full disk"), "once, and it is not tried again"
    share = (len(read) - num_read) / num_read
    assert share == 1.0 if largest_share == 1.0 else share <= largest_share


@pytest.mark.parametrize("work", ["fold", "cumulative"])
def test_with_damaged_changes_since_the_full_form_a_version_is_stored_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    publisher, versions = publisher_of(store), versions_of(18)
    for number, tensors in enumerate(versions[:16]):
        all_forms(publisher, number, tensors)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", lambda _file, num_bytes, _offset: bytes(num_bytes))
        if work == "fold":
            publisher.tidy()
        else:
            assert all_forms(publisher, 16, versions[16]).notice.base is None
    if work == "fold":
        assert all_forms(publisher, 16, versions[16]).notice.base is None
    found = store.fetch(all_forms(publisher, 17, versions[17]).notice, tmp_path / "joiner")
    assert are_equal(found_at(found), versions[17])


def test_a_full_form_beside_a_fold_is_what_later_patches_are_changes_of(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    publisher, versions = publisher_of(store), versions_of(33)
    for number in range(8):
        all_forms(publisher, number, versions[number])
    publisher.publish(8, HoldsTensors(versions[8]))

    def published_meanwhile() -> bool:
        if not again:
            again.append(publisher.publish(17, HoldsTensors(versions[17])))
        return False

    for number in range(9, 16):
        all_forms(publisher, number, versions[number])
    again: list[WeightVersion] = []
    publisher.tidy(published_meanwhile)
    assert again
    forms = [all_forms(publisher, number, versions[number]) for number in range(18, 33)]
    assert forms[-1].cumulative is not None
    for notice in forms[-1].notices:
        assert are_equal(found_at(store.fetch(notice, tmp_path / "joiner")), versions[32])


@both_ways
def test_a_cumulative_patch_whose_write_failed_is_written_again(tmp_path: Path, most_kept_bytes: int) -> None:
    place = tmp_path / "store"
    store = WeightsStore(str(place))
    publisher, versions = publisher_of(store, most_kept_bytes=most_kept_bytes), versions_of(18)
    for number in range(16):
        published(publisher, number, versions[number])
    place.rename(tmp_path / "away")
    place.write_text("in the way")
    sealed = publisher.seal(16, HoldsTensors(versions[16]))
    with pytest.raises(WeightsError):
        publisher.write(sealed)
    place.unlink()
    (tmp_path / "away").rename(place)

    written = publisher.write(sealed)
    assert written.cumulative is not None
    for notice in (*written.notices, published(publisher, 17, versions[17])):
        found = store.fetch(notice, tmp_path / "joiner")
        assert are_equal(found_at(found), versions[notice.version])


def test_changes_that_together_have_more_than_half_of_the_bytes_are_stored_in_full(tmp_path: Path) -> None:
    store = WeightsStore(str(tmp_path))
    publisher, tensors = publisher_of(store), first_tensors()
    forms = [all_forms(publisher, 0, tensors)]
    for number in range(1, 17):
        tensors = next_tensors(tensors, number)
        if number == 16:
            tensors["large"] = -tensors["large"]
        forms.append(all_forms(publisher, number, tensors))
    assert (forms[16].notice.base, forms[16].cumulative) == (None, None)
    assert store.orphans([notice.name for each in forms for notice in each.notices]) == []


@both_ways
def test_what_the_engine_does_after_the_seal_is_not_in_the_patch(
    tmp_path: Path, most_kept_bytes: int
) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    publisher, (first, second, third) = publisher_of(store, most_kept_bytes=most_kept_bytes), versions_of(3)
    published(publisher, 0, first)
    engine = HoldsTensors({name: tensor.clone() for name, tensor in second.items()})
    sealed = publisher.seal(1, engine)
    for name, tensor in third.items():
        engine.tensors[name].copy_(tensor)
    notice = publisher.write(sealed).notice
    assert notice.base is not None
    assert are_equal(found_at(store.fetch(notice, tmp_path / "new")), second)
    again = publisher.write(publisher.seal(2, engine)).notice
    assert are_equal(found_at(store.fetch(again, tmp_path / "new")), third)


@both_ways
def test_a_patch_whose_write_failed_is_written_again(tmp_path: Path, most_kept_bytes: int) -> None:
    place = tmp_path / "store"
    store = WeightsStore(str(place))
    publisher, versions = publisher_of(store, most_kept_bytes=most_kept_bytes), versions_of(3)
    first = published(publisher, 0, versions[0])
    place.rename(tmp_path / "away")
    place.write_text("in the way")
    sealed = publisher.seal(1, HoldsTensors(versions[1]))
    with pytest.raises(WeightsError):
        publisher.write(sealed)
    place.unlink()
    (tmp_path / "away").rename(place)

    second = publisher.write(sealed).notice
    assert second.base is not None
    third = published(publisher, 2, versions[2])
    assert are_equal(found_at(store.fetch(third, tmp_path / "new")), versions[2])
    assert store.orphans([notice.name for notice in (first, second, third)]) == []


def test_one_who_begins_has_no_base(tmp_path: Path) -> None:
    store, versions = WeightsStore(str(tmp_path)), versions_of(3)
    published(publisher_of(store), 1, versions[0])
    after_a_crash = publisher_of(store)
    notices = [published(after_a_crash, number, versions[number]) for number in (1, 2)]
    assert numbers_stored_in_full(notices) == [1]


@both_ways
def test_what_was_sealed_and_never_written_is_the_base_of_nothing(
    tmp_path: Path, most_kept_bytes: int
) -> None:
    store, versions = WeightsStore(str(tmp_path)), versions_of(4)
    publisher = publisher_of(store, most_kept_bytes=most_kept_bytes)
    published(publisher, 0, versions[0])
    publisher.seal(1, HoldsTensors(versions[1]))
    assert published(publisher, 2, versions[2]).base is None
    assert published(publisher, 3, versions[3]).base is not None


@both_ways
@pytest.mark.parametrize("num_nan", [1, 10**6])
def test_an_engine_that_fails_midway_leaves_no_base(
    tmp_path: Path, most_kept_bytes: int, num_nan: int
) -> None:
    store, versions = WeightsStore(str(tmp_path)), versions_of(3)
    publisher = publisher_of(store, most_kept_bytes=most_kept_bytes)
    published(publisher, 0, versions[0])
    broken = versions[1]["half"].clone()
    broken.view(-1)[7 : 7 + num_nan] = float("nan")
    with pytest.raises(EngineError, match="half has a NaN at element 7:"):
        publisher.seal(1, HoldsTensors(versions[1] | {"half": broken}))
    assert published(publisher, 1, versions[1]).base is None
    assert published(publisher, 2, versions[2]).base is not None


def test_patches_that_outgrow_half_of_the_full_form_are_followed_by_a_full_one(tmp_path: Path) -> None:
    store = WeightsStore((tmp_path / "store").as_uri())
    publisher, tensors, notices = publisher_of(store), first_tensors(), []
    for number in range(6):
        notices.append(published(publisher, number, tensors))
        tensors = next_tensors(tensors, number)
        large = tensors["large"].view(torch.int16)
        large[: 1200 // 6] += 1
    notices.append(published(publisher, 6, {name: tensor + 1 for name, tensor in tensors.items()}))
    full = numbers_stored_in_full(notices)
    assert full[0] == 0
    assert 6 in full
    names = [notice.name for notice in notices]
    assert store.orphans(names) == [], "of a patch that was given up nothing is left"
    for first in full:
        since = [each for each in notices[first + 1 :] if each.base is not None]
        assert 2 * sum(each.stored_bytes for each in since[: 5 - first]) <= notices[0].stored_bytes


@pytest.mark.parametrize("way", ["off", "file", "float32", "other tensors"])
def test_nothing_else_than_full_forms(tmp_path: Path, way: str) -> None:
    store = WeightsStore(str(tmp_path))
    publisher = publisher_of(store, "file" if way == "file" else "content", patches=way != "off")
    versions = versions_of(3)
    if way == "float32":
        versions = [{name: tensor.to(torch.float32) for name, tensor in each.items()} for each in versions]
    if way == "other tensors":
        versions = [each | {f"more {number}": torch.zeros(2)} for number, each in enumerate(versions)]
    notices = [published(publisher, number, tensors) for number, tensors in enumerate(versions)]
    assert numbers_stored_in_full(notices) == [0, 1, 2]


def test_changes_that_take_too_much_memory_are_let_go() -> None:
    first, second = (each["large"].view(torch.uint8).numpy().reshape(-1).data for each in versions_of(2))
    end = 2 * segment_elements
    spec = TensorSpec("large", "BF16", (1200, 1000))
    for most_bytes, are_too_many in ((10**6, False), (1000, True)):
        noted = NotedChanges(most_bytes=most_bytes)
        noted.note(spec, 0, first[:end], second[:end])
        assert noted.are_too_many == are_too_many


def test_where_nearly_all_elements_of_a_segment_change_the_tensor_is_stored_whole() -> None:
    spec, old = TensorSpec("large", "BF16", (1000,)), np.zeros(1000, np.uint16)
    for num_changed, form in ((900, "changed"), (901, "dense")):
        new, noted = old.copy(), NotedChanges()
        new[:num_changed] += 1
        changed = noted.note(spec, 0, old.view(np.uint8).data, new.view(np.uint8).data)
        assert (changed is None) == (form == "dense")
        assert noted.patch(spec, new.view(np.uint8).data).form == form


@pytest.mark.parametrize("is_kept", [True, False])
def test_changes_that_there_is_no_memory_for_are_stored_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    store, tensors = WeightsStore(str(tmp_path)), {"large": torch.zeros(1000, 1000, dtype=torch.bfloat16)}
    publisher = publisher_of(store, most_kept_bytes=2_000_000 if is_kept else 0)
    if not is_kept:
        monkeypatch.setattr("trainer.publishing.NotedChanges", partial(NotedChanges, most_bytes=2_000_000))
    forms = []
    for number, num_changed in enumerate((0, 400_000, 600_000, 100)):
        elements = tensors["large"].view(torch.int16).view(-1)
        elements[:num_changed] += 1
        forms.append(published(publisher, number, tensors))
        assert are_equal(found_at(store.fetch(forms[-1], tmp_path / "new")), tensors)
    assert numbers_stored_in_full(forms) == [0, 2]


def test_what_was_sealed_is_stored_in_full_where_another_was_published_since(tmp_path: Path) -> None:
    store, versions = WeightsStore(str(tmp_path)), versions_of(2)
    publisher = publisher_of(store)
    published(publisher, 0, versions[0])
    sealed = publisher.seal(1, HoldsTensors(versions[1]))
    publisher.publish(1, HoldsTensors(versions[1]))
    again = publisher.write(sealed).notice
    assert again.base is None
    assert are_equal(found_at(store.fetch(again, tmp_path / "new")), versions[1])


@given(st.data())
def test_what_is_noted_comes_back(data: st.DataObject) -> None:
    num_elements = data.draw(st.integers(1000, 200_000))
    # On both sides of the places where two bytes are not enough.
    edges = st.sampled_from([0, 65_535, 65_536, 131_071, 131_072]).filter(lambda place: place < num_elements)
    places = data.draw(st.lists(st.one_of(st.integers(0, num_elements - 1), edges), max_size=30))
    old = np.random.default_rng(0).integers(0, 1 << 16, num_elements, dtype=np.uint16)
    new, noted = old.copy(), NotedChanges()
    new[places] += 1
    spec = TensorSpec("any", "BF16", (num_elements,))
    changed = noted.note(spec, 0, old.view(np.uint8).data, new.view(np.uint8).data)
    patch = noted.patch(spec, new.view(np.uint8).data)
    assert changed is not None
    assert bytes(changed) == new[old != new].tobytes()
    assert patch == encode(old, new)
