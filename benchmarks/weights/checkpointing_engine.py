"""An engine whose checkpoints have the bytes of real ones: 12 for each parameter, in float32, as AdamW has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.weights.large_engines import HoldingEngine, changed_share
from trainer.engines.state_copies import CheckpointPart, StateMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.harness.random_model import ModelShape
    from rollog.kernel.versions.tensors import TensorSink
    from trainer.checkpoint_files import Digests

_state_file = "engine.pt"
_apart = 1024


class CheckpointingEngine(HoldingEngine):
    """Has what the optimizer moves, too. The moments are other slices of it: they are read like memory of their own."""

    def __init__(self, shape: ModelShape, *, seconds: float = 0.0, changed: float = changed_share) -> None:
        super().__init__(shape, seconds=seconds, changed=changed)
        self._num_parameters = self.num_bytes // 2
        self._floats = torch.rand(
            self._num_parameters + 2 * _apart, generator=torch.Generator().manual_seed(0)
        )
        self._memory = StateMemory()

    def export_weights(self, sink: TensorSink | None) -> None:
        """As all, before what is written of a checkpoint."""
        with self.way.copying():
            super().export_weights(sink)

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        """Copy the state and keep the digest, to be written later."""
        part = CheckpointPart(directory, self._memory, self.way)
        names = ("masters", "exp_avg", "exp_avg_sq")
        part.add(
            _state_file,
            {
                name: self._floats[number * _apart :][: self._num_parameters]
                for number, name in enumerate(names)
            },
        )
        write = super().begin_checkpoint(directory)
        return lambda: {**write(), **part.write()}
