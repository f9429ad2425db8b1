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
import transformers
from torch import Tensor, nn

from rollog.kernel.errors import EngineError
from trainer.engines.ports import EngineDescription, StepResult, TrainingBatch
from trainer.model.adapters import adapter_versions, add_adapters, published_tensors, trained_parameters
from trainer.model.arithmetic import arithmetic_facts
from trainer.model.packing_probe import check_packing
from trainer.model.policy import (
    Policy,
    checkpoint_activations,
    compute_deterministically,
    dtypes,
    load_model,
    model_config_json,
    to_safetensors,
)
from trainer.model.reference import ReferenceModel
from trainer.step.gradients import accumulate, step_statistics, step_work
from trainer.step.optimizer import adamw_settings
from trainer.step.schedule import next_rates

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from rollog.settings.training import TrainerConfig
    from trainer.engines.ports import StepSettings
    from trainer.step.gradients import Anchors, Minibatch
    from trainer.step.off_policy import RatioSums

checkpoint_file = "engine.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A model in training. `masters` are what the optimizer moves: in float32 the `trained` parameters themselves."""

    model: PreTrainedModel
    policy: Policy
    optimizer: torch.optim.Optimizer
    trained: list[nn.Parameter]
    masters: list[Tensor]
    reference: ReferenceModel
    device: torch.device


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
        self._state: _Started | None = None

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Build model and optimizer."""
        self.close()
        compute_deterministically(self._trainer.num_threads, self._trainer.reproducible)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = load_model(model_path, weights_path, self._dtype)
        has_values = self._settings.algorithm.needs_values
        policy = Policy(model, self._temperature, with_value_head=has_values).to(device).train()
        if self._trainer.activation_checkpointing:
            checkpoint_activations(model)
        if self._trainer.packing:
            check_packing(policy)
        is_float32 = dtypes[self._dtype] is torch.float32
        add_adapters(model, self._trainer)
        trained = trained_parameters(policy)
        masters: list[Tensor] = [
            parameter if is_float32 else parameter.detach().float() for parameter in trained
        ]
        optimizer = torch.optim.AdamW(
            masters,
            lr=self._settings.optimizer.learning_rate,
            **adamw_settings(self._settings.optimizer),
            fused=True,
        )
        self._state = _Started(
            model=model,
            policy=policy,
            optimizer=optimizer,
            trained=trained,
            masters=masters,
            reference=ReferenceModel(model_path, weights_path, self._temperature, self._dtype),
            device=device,
        )
        self._steps_taken = 0

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """One optimizer step per minibatch."""
        state, algorithm = self._started(), self._settings.algorithm
        work = step_work(
            state.policy,
            state.reference.policy(state.device) if algorithm.needs_reference else None,
            batch,
            algorithm,
            rank=0,
            device=state.device,
            packing=self._trainer.packing,
            gather=lambda found: found,
        )
        rates = next_rates(self._steps_taken, len(work.minibatches), self._settings)
        outcomes = [
            self._optimizer_step(state, part, anchors, rate)
            for part, anchors, rate in zip(work.minibatches, work.anchors, rates, strict=True)
        ]
        self._steps_taken += len(rates)
        return StepResult(
            losses=tuple(loss for loss, _, _ in outcomes),
            gradient_norms=tuple(norm for _, _, norm in outcomes),
            learning_rates=rates,
            statistics=work.statistics | step_statistics([sums for _, sums, _ in outcomes]),
        )

    def change_settings(self, settings: StepSettings) -> None:
        """Put the new settings into the optimizer."""
        for group in self._started().optimizer.param_groups:
            group.update(adamw_settings(settings.optimizer))
        self._settings = settings

    def export_weights(self) -> bytes:
        """All weights as safetensors."""
        tensors = published_tensors(self._started().model)
        return to_safetensors(
            {tensor.name: tensor.value().to("cpu", copy=True) for tensor in tensors}, self._dtype
        )

    def save_checkpoint(self, directory: Path) -> None:
        """Write weights, what the optimizer moves, and its state into one file."""
        state = self._started()
        content = {
            "model": state.model.state_dict(),
            "masters": [master.detach() for master in state.masters],
            "optimizer": state.optimizer.state_dict(),
            "steps_taken": self._steps_taken,
        }
        torch.save(content, directory / checkpoint_file)

    def load_checkpoint(self, directory: Path) -> None:
        """Restore weights, optimizer and schedule. Call it on a newly started engine."""
        state = self._started()
        try:
            content: dict[str, Any] = torch.load(
                directory / checkpoint_file, map_location=state.device, weights_only=True
            )
        except (OSError, RuntimeError, UnpicklingError) as error:
            raise EngineError(
                f"{directory} holds no checkpoint of the plain engine ({error}); remove that directory"
            ) from error
        state.model.load_state_dict(content["model"])
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
            model_config_json=model_config_json(state.model),
            versions={
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                **adapter_versions(self._trainer),
                **arithmetic_facts(state.device),
            },
        )

    def close(self) -> None:
        """Free the model."""
        self._state = None
        gc.collect()

    def _optimizer_step(
        self, state: _Started, minibatch: Minibatch, anchors: list[Anchors], rate: float
    ) -> tuple[float, RatioSums, float]:
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        state.policy.zero_grad()
        loss, sums = accumulate(
            state.policy,
            Tensor.backward,
            minibatch,
            self._settings.algorithm,
            anchors=anchors,
            device=state.device,
        )
        pairs = list(zip(state.trained, state.masters, strict=True))
        for parameter, master in pairs:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            master.grad = gradient.to(master.dtype)
        norm = nn.utils.clip_grad_norm_(state.masters, self._settings.optimizer.max_gradient_norm)
        state.optimizer.step()
        with torch.no_grad():
            for parameter, master in pairs:
                if parameter is not master:
                    parameter.copy_(master)
        return loss, sums, norm.item()

    def _started(self) -> _Started:
        if self._state is None:
            raise EngineError("the training engine is not started: call start() first")
        return self._state
