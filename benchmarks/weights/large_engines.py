"""Training engines with tensors of a model's sizes: a step is a wait, and every version has other bytes.

Tensors are random finite bfloat16 values. In a step 2 % of the elements, at random positions, move to a neighbouring
value, as real updates at a learning rate of 1e-6 are measured to do: a patch has about as many bytes as a real one.
Real updates change the same elements again, and often back. So positions are drawn from a part of all: of what 16
versions change one after the other, a third is changed at the end. That is more than was measured: a quarter
(`cumulative_changed` of `--only patches`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.versions.tensors import TensorSpec, file_order
from trainer.engines.simulated import SimulatedTrainingEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from benchmarks.harness.random_model import ModelShape
    from rollog.kernel.versions.tensors import TensorSink
    from trainer.step.ports import StepResult, TrainingBatch

    Elements = NDArray[np.uint16]

changed_share = 0.02
"""Of all elements, in a step."""
moving_share = 0.22
"""The elements that change in any step, of all."""
checkpoint_bytes = 12
"""Of each parameter in a checkpoint: what the optimizer moves, and two moments, in float32."""
_num_patterns = 64
"""After so many steps all changes are made again."""
_pattern_elements = 1 << 20
_drawn_elements = 1 << 24
# Exponents below that of ones have no bits of a NaN: what is drawn is finite, and stays so.
_largest = 0x3F80


class LargeEngine(SimulatedTrainingEngine):
    """The simulated engine with tensors of a model beside its digest.

    A step takes `seconds`, changes included; the first one, which does not know how long they take, takes longer. It
    changes the share `changed` of the elements.
    """

    def __init__(self, shape: ModelShape, *, seconds: float = 0.0, changed: float = changed_share) -> None:
        super().__init__()
        self._table = tuple(file_order(table_of(shape)))
        self._seconds = seconds
        self._patterns = _patterns(changed)
        self._num_changes = 0
        self._change_seconds = 0.0

    @property
    def num_bytes(self) -> int:
        """Of all tensors but the digest."""
        return sum(spec.num_bytes for spec in self._table)

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """Wait, and change a few elements at the end, as optimizers do: what is beside a step has the processors."""
        began = time.monotonic()
        result = super().train_step(batch)
        _sleep_until(began + self._seconds - self._change_seconds)
        changing = time.monotonic()
        self.change()
        self._change_seconds = time.monotonic() - changing
        _sleep_until(began + self._seconds)
        return result

    def change(self) -> None:
        """Move a few elements of every tensor."""
        self._num_changes += 1
        for number, data in enumerate(self._changing()):
            for first in range(0, data.size, _pattern_elements):
                part = data[first : first + _pattern_elements]
                which = self._num_changes * 7 + number + first // _pattern_elements
                positions = self._patterns[which % _num_patterns]
                part[positions[: np.searchsorted(positions, part.size)]] ^= 1

    def export_weights(self, sink: TensorSink | None) -> None:
        """The tensors, then the digest: its type is the narrowest."""
        assert sink is not None
        digest = memoryview(self._started())
        own = TensorSpec("digest", "U8", (len(digest),))
        sink.begin([*self._table, own])
        for number, spec in enumerate(self._table):
            sink.add(spec, self._tensor(number, spec).view(np.uint8).data)
        sink.add(own, digest)

    @abstractmethod
    def _changing(self) -> Sequence[Elements]:
        """What changes in a step."""

    @abstractmethod
    def _tensor(self, number: int, spec: TensorSpec) -> Elements:
        """The elements of one tensor."""


class HoldingEngine(LargeEngine):
    """Has all tensors in memory, so that handing them over takes no time."""

    def __init__(self, shape: ModelShape, *, seconds: float = 0.0, changed: float = changed_share) -> None:
        super().__init__(shape, seconds=seconds, changed=changed)
        draw = np.random.default_rng(0)
        self._tensors = [
            draw.integers(0, _largest, spec.num_bytes // 2, dtype=np.uint16) for spec in self._table
        ]

    def _changing(self) -> Sequence[Elements]:
        return self._tensors

    def _tensor(self, number: int, spec: TensorSpec) -> Elements:
        del spec
        return self._tensors[number]


class DrawingEngine(LargeEngine):
    """Makes each tensor when it is handed over, as one comes from a device, of 32 MB of random elements.

    `making_seconds` is what that has taken so far.
    """

    def __init__(self, shape: ModelShape, *, seconds: float = 0.0) -> None:
        super().__init__(shape, seconds=seconds)
        self._drawn: Elements = np.random.default_rng(0).integers(
            0, _largest, _drawn_elements, dtype=np.uint16
        )
        self.making_seconds = 0.0

    def _changing(self) -> Sequence[Elements]:
        return (self._drawn,)

    def _tensor(self, number: int, spec: TensorSpec) -> Elements:
        del number
        began = time.perf_counter()
        made = np.empty(spec.num_bytes // 2, dtype=np.uint16)
        for first in range(0, made.size, self._drawn.size):
            part = made[first : first + self._drawn.size]
            part[:] = self._drawn[: part.size]
        self.making_seconds += time.perf_counter() - began
        return made


def table_of(shape: ModelShape) -> list[TensorSpec]:
    """The large tensors of a Qwen2 model of this shape, in bfloat16."""
    hidden, between = shape.hidden_size, shape.intermediate_size
    keys = hidden // shape.num_heads * shape.num_key_value_heads
    sizes = {
        "q": (hidden, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, hidden),
        "gate": (between, hidden),
        "up": (between, hidden),
        "down": (hidden, between),
    }
    layers = [
        TensorSpec(f"layers.{number}.{name}", "BF16", size)
        for number in range(shape.num_layers)
        for name, size in sizes.items()
    ]
    ends = ["embed"] if shape.has_tied_embeddings else ["embed", "head"]
    return [*(TensorSpec(name, "BF16", (shape.vocab_size, hidden)) for name in ends), *layers]


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _patterns(changed: float) -> list[NDArray[np.intp]]:
    """Positions within so many elements, ascending: what one step changes."""
    draw = np.random.default_rng(1)
    moving = np.flatnonzero(draw.random(_pattern_elements) < moving_share)
    return [moving[draw.random(moving.size) < changed / moving_share] for _ in range(_num_patterns)]
