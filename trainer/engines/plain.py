"""The plain engine: PyTorch alone, one process, one device.

Consumes training batches, produces weights. In bfloat16 the optimizer works on float32 copies of the weights.

On crash: nothing is kept outside the process but checkpoints; the caller rebuilds the engine from one of these or
from version 0.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rollog.kernel.errors import EngineError
from trainer.engines.ports import EngineDescription
from trainer.engines.state_copies import CheckpointPart, StateMemory
from trainer.model.adapters import accumulate_in_float32, published_adapter, trained_parameters
from trainer.model.export import export_model
from trainer.model.policy import compute_deterministically, model_config_json
from trainer.model.preparation import library_versions, prepare_policy
from trainer.right_of_way import RightOfWay
from trainer.step.optimizer import new_adamw, set_adamw
from trainer.step.probing import sequence_logprobs
from trainer.step.training_step import train_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rollog.kernel.versions.tensors import TensorSink
    from rollog.settings.training import OptimizerConfig, TrainerConfig
    from trainer.checkpoint_files import Digests
    from trainer.model.preparation import PreparedPolicy
    from trainer.step.forward import AnyPolicy
    from trainer.step.ports import Float64Array, StepResult, StepSettings, TrainingBatch

checkpoint_file = "engine.pt"


class PlainEngine:
    """Trains with PyTorch; see `trainer.engines.ports.TrainingEngine` for the promises."""

    def __init__(
        self, *, settings: StepSettings, trainer: TrainerConfig, temperature: float, dtype: str
    ) -> None:
        self._settings = settings
        self._trainer = trainer
        self._temperature = temperature
        self._dtype = dtype
        self._steps_taken = 0
        self._memory = StateMemory()
        self.way = RightOfWay()
        self._state: _PlainStepEngine | None = None

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Build model and optimizer."""
        self.close()
        compute_deterministically(self._trainer.num_threads or 1, self._trainer.reproducible)
        prepared = prepare_policy(
            model_path,
            weights_path,
            self._trainer,
            temperature=self._temperature,
            dtype=self._dtype,
            with_value_head=self._settings.algorithm.needs_values,
        )
        self._state = _on_device(prepared, self._settings.optimizer, self._trainer)
        self._steps_taken = 0

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """One optimizer step per minibatch; see `trainer.step.training_step`."""
        state = self._started()
        state.policy.zero_grad()  # a step that failed may have left gradients
        result = train_step(batch, state, self._settings, steps_taken=self._steps_taken)
        self._steps_taken += len(result.learning_rates)
        return result

    def change_settings(self, settings: StepSettings) -> None:
        """Take these settings from the next step on: each step puts them into the optimizer."""
        self._started()
        self._settings = settings

    def export_weights(self, sink: TensorSink | None) -> None:
        """Hand all weights over, one after another."""
        with self.way.copying():
            export_model(
                self._started().prepared.model,
                self._dtype,
                sink,
                merged=self._trainer.lora_published == "merged",
            )

    def sequence_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """One forward pass without gradient."""
        state = self._started()
        with state.prepared.policy.at_temperature(1.0):
            return sequence_logprobs(state, token_ids)

    def save_checkpoint(self, directory: Path) -> Digests:
        """Write weights, what the optimizer moves, and its state into one file."""
        return self._added(CheckpointPart(directory)).write()

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        """Copy the same, to be written later."""
        return self._added(CheckpointPart(directory, self._memory, self.way)).write

    def _added(self, part: CheckpointPart) -> CheckpointPart:
        state = self._started()
        content = {
            "model": state.prepared.model.state_dict(),
            "masters": [master.detach() for master in state.masters],
            "optimizer": state.optimizer.state_dict(),
            "steps_taken": self._steps_taken,
        }
        part.add(checkpoint_file, content)
        return part

    def load_checkpoint(self, directory: Path) -> None:
        """Restore weights, optimizer and schedule. Call it on a newly started engine. Raises EngineError."""
        state = self._started()
        try:
            content: dict[str, Any] = torch.load(
                directory / checkpoint_file, map_location=state.device, weights_only=True
            )
        except (OSError, RuntimeError, UnpicklingError) as error:
            raise EngineError(
                f"{directory} holds no checkpoint of the plain engine ({error}); remove that directory"
            ) from error
        state.prepared.model.load_state_dict(content["model"])
        with torch.no_grad():
            for parameter, master, saved in zip(
                state.trained, state.masters, content["masters"], strict=True
            ):
                master.copy_(saved)
                parameter.copy_(master)
        state.optimizer.load_state_dict(content["optimizer"])
        self._steps_taken = int(content["steps_taken"])

    def describe(self) -> EngineDescription:
        """Name, size, type and versions."""
        state = self._started()
        return EngineDescription(
            name="torch",
            world_size=1,
            zero_stage=0,
            dtype=self._dtype,
            device=torch.cuda.get_device_name() if state.device.type == "cuda" else state.device.type,
            model_config_json=model_config_json(state.prepared.model),
            adapter=published_adapter(state.prepared.model, self._trainer),
            versions=library_versions(self._trainer, state.device),
        )

    def close(self) -> None:
        """Free the model."""
        self._state = None
        gc.collect()

    def _started(self) -> _PlainStepEngine:
        if self._state is None:
            raise EngineError("the training engine is not started: call start() first")
        return self._state


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PlainStepEngine:
    """A model in training, as `trainer.step.ports.StepEngine` wants it.

    `masters` are what the optimizer moves: in float32 the `trained` parameters themselves, else copies in float32.
    """

    prepared: PreparedPolicy
    policy: nn.Module
    device: torch.device
    packing: bool
    optimizer: torch.optim.Optimizer
    trained: list[nn.Parameter]
    masters: list[Tensor]
    rank: int = 0

    def reference(self) -> AnyPolicy:
        return self.prepared.reference(self.policy, self.device)

    def gather(self, numbers: Float64Array) -> list[Float64Array]:
        return [numbers]

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def apply_gradients(self, optimizer: OptimizerConfig, learning_rate: float) -> float:
        set_adamw(self.optimizer, optimizer, learning_rate)
        pairs = list(zip(self.trained, self.masters, strict=True))
        for parameter, master in pairs:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            master.grad = gradient.to(master.dtype)
        norm = nn.utils.clip_grad_norm_(self.masters, optimizer.max_gradient_norm)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in pairs:
                if parameter is not master:
                    parameter.copy_(master)
        self.policy.zero_grad()
        return norm.item()


def _on_device(
    prepared: PreparedPolicy, optimizer: OptimizerConfig, trainer: TrainerConfig
) -> _PlainStepEngine:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = prepared.policy.to(device).train()
    trained = trained_parameters(policy)
    if trainer.gradient_dtype == "float32":
        accumulate_in_float32(trained)
    masters: list[Tensor] = [
        parameter if parameter.dtype is torch.float32 else parameter.detach().float() for parameter in trained
    ]
    return _PlainStepEngine(
        prepared=prepared,
        policy=policy,
        device=device,
        packing=trainer.packing,
        optimizer=new_adamw(masters, optimizer),
        trained=trained,
        masters=masters,
    )
