"""An engine's state is copied whole, into memory that is taken once, and written as it was."""

from __future__ import annotations

import hashlib
import resource
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainer.engines.state_copies import CheckpointPart, StateMemory
from trainer.right_of_way import RightOfWay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine


def a_state(value: float = 1.0) -> dict[str, Any]:
    weights = torch.full((3, 2), value)
    flat = torch.arange(100.0) * value
    return {
        "model": OrderedDict(weights=weights, buffer=torch.tensor(7)),
        "masters": [weights.detach(), flat[10:20]],
        "shapes": {"weights": weights.shape},
        "groups": ({"lr": 0.1, "betas": (0.9, 0.95)}, torch.zeros(0)),
    }


def loaded(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def test_a_copy_keeps_values_types_and_what_is_one(tmp_path: Path) -> None:
    state = a_state()
    vars(state["model"])["_metadata"] = {"": {"version": 1}}  # as a module's state has it
    copied = StateMemory().copy("state", state)
    state["masters"][0].fill_(9.0)
    state["groups"][0]["lr"] = 0.2
    assert copied is not None
    assert torch.equal(copied["model"]["weights"], torch.full((3, 2), 1.0))
    assert copied["masters"][0] is copied["model"]["weights"]
    assert torch.equal(copied["masters"][1], torch.arange(10.0, 20.0))
    assert copied["groups"][0] == {"lr": 0.1, "betas": (0.9, 0.95)}
    assert type(copied["model"]) is OrderedDict
    assert vars(copied["model"])["_metadata"] == {"": {"version": 1}}
    assert type(copied["shapes"]["weights"]) is torch.Size
    torch.save(copied, tmp_path / "copied")
    assert (tmp_path / "copied").stat().st_size < 4000, "a slice does not bring the whole along"


def test_the_memory_is_taken_once() -> None:
    asked: list[int] = []
    memory = StateMemory(free_bytes=lambda: asked.append(1) or 10**6)  # type: ignore[func-returns-value]
    first = memory.copy("state", a_state(1.0))
    second = memory.copy("state", a_state(2.0))
    assert first is not None
    assert second is not None
    assert second["masters"][1].data_ptr() == first["masters"][1].data_ptr()
    assert torch.equal(second["masters"][1], torch.arange(20.0, 40.0, 2.0))
    assert len(asked) == 1, "what is held already needs no room"


def test_a_state_of_another_form_gets_memory_of_its_own() -> None:
    memory = StateMemory()
    memory.copy("state", {"weights": torch.zeros(3)})
    copied = memory.copy("state", {"weights": torch.ones(3, dtype=torch.float64), "more": torch.ones(5)})
    assert copied is not None
    assert copied["weights"].dtype is torch.float64
    assert torch.equal(copied["more"], torch.ones(5))


@pytest.mark.parametrize(
    ("num_ranks", "free_bytes", "is_copied"),
    [(1, 1600, True), (1, 1599, False), (2, 1600, False), (2, 3200, True), (1, None, True)],
)
def test_a_copy_takes_half_of_the_free_memory_at_most(
    num_ranks: int, free_bytes: int | None, is_copied: bool
) -> None:
    memory = StateMemory(num_ranks=num_ranks, free_bytes=lambda: free_bytes)
    copied = memory.copy("state", {"weights": torch.zeros(100), "moments": torch.zeros(100)})
    assert (copied is not None) == is_copied


@pytest.mark.parametrize("free_bytes", [10**9, 0])
def test_files_have_their_digests_and_the_state_of_when_they_were_added(
    tmp_path: Path, free_bytes: int
) -> None:
    weights = torch.zeros(100)
    part = CheckpointPart(tmp_path, StateMemory(free_bytes=lambda: free_bytes))
    for name in ("one.pt", "two.pt"):
        part.add(name, {"weights": weights})
        assert (tmp_path / name).exists() == (free_bytes == 0), (
            "without room for a copy it is written at once"
        )
    weights.fill_(1.0)
    digests = part.write()
    for name in ("one.pt", "two.pt"):
        assert digests[name] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert torch.equal(loaded(tmp_path / name)["weights"], torch.zeros(100))


class AskingMemory(StateMemory):
    """Notes whether somebody else has to wait while it copies."""

    def __init__(self, way: RightOfWay, pool: ThreadPoolExecutor) -> None:
        super().__init__()
        self.is_first: list[bool] = []
        self._way = way
        self._pool = pool

    def copy(self, name: str, state: Any) -> Any | None:
        given = self._pool.submit(self._way.give_to_copies)
        self.is_first.append(not wait([given], timeout=0.2).done)
        return super().copy(name, state)


def test_copies_go_first_and_are_written_behind_others(tmp_path: Path) -> None:
    way = RightOfWay(longest_seconds=3600.0)
    with ThreadPoolExecutor(1) as pool:
        memory = AskingMemory(way, pool)
        part = CheckpointPart(tmp_path, memory, way)
        part.add("one.pt", a_state())
        assert memory.is_first == [True]
        with way.awaited():
            written = pool.submit(part.write)
            assert not wait([written], timeout=0.2).done
        assert written.result(timeout=60.0).keys() == {"one.pt"}


def test_without_memory_for_copies_everything_is_written_at_once(tmp_path: Path) -> None:
    part = CheckpointPart(tmp_path)
    part.add("one.pt", a_state())
    assert (tmp_path / "one.pt").exists()
    assert list(part.write()) == ["one.pt"]


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """The system refuses what is written beyond: as a full disk does, which a test cannot have."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_the_system_refuses_is_told_as_what_it_is(tmp_path: Path) -> None:
    """PyTorch's writer alone says that a file has an unexpected length."""
    part = CheckpointPart(tmp_path, StateMemory())
    part.add("one.pt", a_state())
    with pytest.raises(OSError, match="File too large"), files_of_at_most(1000):
        part.write()
