"""The DeepSpeed engine: ZeRO stages 0 to 3, on CPU (gloo) and on GPU (nccl).

Consumes training batches, produces weights. Alone it is one rank that opens no port; among several, every rank has such
an engine and all make the same calls (`multi_rank/`). Gradients are accumulated by DeepSpeed until
`step`, which reduces, clips and applies them; its own schedulers, timers and random-number helpers are not used, so
that a step is a function of weights, optimizer state and batch alone.

On crash: nothing is kept outside the process but checkpoints; the caller rebuilds the engine from one of these or
from version 0. DeepSpeed's checkpoints are pickles: only files of this user that nobody else can write are loaded.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rollog.kernel.errors import EngineError
from rollog.kernel.machine import return_freed_memory
from trainer.engines.deepspeed_config import check_config, deepspeed_config, is_accumulated_wide
from trainer.engines.multi_rank.process_group import (
    gather_numbers,
    join_process_group,
    leave_process_group,
    limit_waiting,
)
from trainer.engines.ports import EngineDescription
from trainer.engines.state_copies import CheckpointPart, StateMemory
from trainer.engines.zero_sharing import ZeroSharing
from trainer.model.adapters import accumulate_in_float32, published_adapter, trained_parameters
from trainer.model.export import export_model
from trainer.model.policy import compute_deterministically, model_config_json
from trainer.model.preparation import library_versions, prepare_policy
from trainer.model.sharing import unshared
from trainer.right_of_way import RightOfWay
from trainer.step.optimizer import new_adamw, set_adamw
from trainer.step.probing import sequence_logprobs
from trainer.step.training_step import train_step
from trainer.trusted_files import require_own_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollog.kernel.versions.tensors import TensorSink
    from rollog.settings.training import OptimizerConfig, TrainerConfig
    from trainer.checkpoint_files import Digests
    from trainer.engines.multi_rank.ranks import RankGroup
    from trainer.model.preparation import PreparedPolicy
    from trainer.model.sharing import Sharing
    from trainer.step.forward import AnyPolicy
    from trainer.step.ports import Float64Array, StepResult, StepSettings, TrainingBatch

checkpoint_tag = "engine"
_shares_weights = 3
"""The ZeRO stage from which on weights, too, are shared out."""
_linear = nn.functional.linear
"""PyTorch's own. Stage 3 puts another in its place, for the whole process; gradients would then arrive in another order
than on a rank that has not, and stage 2 adds up what arrives."""


class DeepSpeedEngine:
    """Trains with DeepSpeed; see `trainer.engines.ports.TrainingEngine` for the promises."""

    def __init__(
        self,
        *,
        settings: StepSettings,
        trainer: TrainerConfig,
        temperature: float,
        dtype: str,
        ranks: RankGroup | None = None,
    ) -> None:
        """`ranks` are those that train together; without them this one is alone."""
        self._ranks = ranks
        self._settings = settings
        self._trainer = trainer
        self._temperature = temperature
        self._dtype = dtype
        self._steps_taken = 0
        self._memory = StateMemory(num_ranks=1 if ranks is None else ranks.world_size)
        self.way = RightOfWay()
        self._state: _DeepSpeedStepEngine | None = None
        self._started_with: tuple[str, Path | None] = ("", None)
        self._sharing: Sharing = unshared
        self._is_amid_step = False
        self._owns_group = False

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Join the process group, build model and optimizer; at stage 3 layers are shared out as they are made."""
        self.close()
        try:
            self._start(model_path, weights_path)
        except BaseException:
            self.close()
            raise
        self._started_with = (model_path, weights_path)
        self._steps_taken = 0

    def _start(self, model_path: str, weights_path: Path | None) -> None:
        compute_deterministically(self._trainer.num_threads or 1, self._trainer.reproducible)
        deepspeed = _import_deepspeed()
        config = self._deepspeed_config()
        check_config(deepspeed, config)
        timeout_seconds = self._trainer.rank_timeout_seconds
        self._owns_group = join_process_group(deepspeed, self._ranks, timeout_seconds)
        if self._trainer.zero_stage >= _shares_weights:
            self._sharing = ZeroSharing(deepspeed, config)
        prepared = prepare_policy(
            model_path,
            weights_path,
            self._trainer,
            temperature=self._temperature,
            dtype=self._dtype,
            with_value_head=self._settings.algorithm.needs_values,
            sharing=self._sharing,
        )
        return_freed_memory()  # pieces between weights, too small for what DeepSpeed makes now
        trained = trained_parameters(prepared.policy)
        adamw = new_adamw(trained, self._settings.optimizer)
        clipping = _ClippingBeforeStep(adamw) if self._must_clip_itself else None
        # It prints what memory is in use; standard output belongs to what a command answers.
        with redirect_stdout(sys.stderr):
            engine = deepspeed.initialize(
                model=prepared.policy,
                optimizer=adamw,
                config=config,
                dist_init_required=False,
            )[0]
        limit_waiting(timeout_seconds)
        if is_accumulated_wide(self._trainer, self._dtype) and self._trainer.zero_stage == 0:
            accumulate_in_float32(trained)  # DeepSpeed has no way of its own there
        self._state = _DeepSpeedStepEngine(
            prepared=prepared, policy=engine, packing=self._trainer.packing, clipping=clipping
        )

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """One optimizer step per minibatch; see `trainer.step.training_step`."""
        state = self._started()
        state.policy.train()
        self._is_amid_step = True
        result = train_step(batch, state, self._settings, steps_taken=self._steps_taken)
        self._is_amid_step = False
        self._steps_taken += len(result.learning_rates)
        return result

    def change_settings(self, settings: StepSettings) -> None:
        """Take these settings from the next step on: each step puts them into optimizer and clipping."""
        self._started()
        self._settings = settings

    def export_weights(self, sink: TensorSink | None) -> None:
        """Hand all weights over, one after another; at stage 3 each is gathered from its partitions for that long."""
        with self.way.copying():
            export_model(
                self._started().prepared.model,
                self._dtype,
                sink,
                self._sharing,
                merged=self._trainer.lora_published == "merged",
            )

    def sequence_logprobs(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """One forward pass without gradient."""
        state = self._started()
        with state.prepared.policy.at_temperature(1.0):
            return sequence_logprobs(state, token_ids)

    def save_checkpoint(self, directory: Path) -> Digests:
        """Write DeepSpeed's own checkpoint below `directory`."""
        return self._added(CheckpointPart(directory)).write()

    def begin_checkpoint(self, directory: Path) -> Callable[[], Digests]:
        """Copy what DeepSpeed would write; its collective operations are over then."""
        return self._added(CheckpointPart(directory, self._memory, self.way)).write

    def _added(self, part: CheckpointPart) -> CheckpointPart:
        policy = self._started().policy
        with _saving_to(policy, part):
            policy.save_checkpoint(
                str(part.directory),
                tag=checkpoint_tag,
                client_state={"steps_taken": self._steps_taken},
                save_latest=False,
            )
        return part

    def load_checkpoint(self, directory: Path) -> None:
        """Restore weights, optimizer and schedule.

        Raises EngineError, and DataError where others may have written the files.
        """
        if self._is_amid_step:
            # DeepSpeed keeps the gradients of a step that failed, whatever it loads, and adds the next ones to them.
            self.start(*self._started_with)
        engine = self._started().policy
        saved: dict[str, Any] = {}
        require_own_files(directory)
        if (directory / checkpoint_tag).is_dir():  # without one, DeepSpeed fails in an assertion of its own
            _, saved = engine.load_checkpoint(str(directory), tag=checkpoint_tag)
        if "steps_taken" not in (saved or {}):
            raise EngineError(
                f"{directory} holds no DeepSpeed checkpoint of this kind; remove that directory"
            )
        self._steps_taken = int(saved["steps_taken"])

    def describe(self) -> EngineDescription:
        """Name, size, type and versions."""
        state = self._started()
        return EngineDescription(
            name="deepspeed",
            world_size=state.world_size,
            zero_stage=self._trainer.zero_stage,
            dtype=self._dtype,
            device=torch.cuda.get_device_name() if state.device.type == "cuda" else state.device.type,
            model_config_json=model_config_json(state.prepared.model),
            adapter=published_adapter(state.prepared.model, self._trainer),
            versions={
                "deepspeed": _import_deepspeed().__version__,
                **library_versions(self._trainer, state.device),
            },
        )

    def close(self) -> None:
        """Free the model and leave the process group."""
        if self._state is not None:
            self._state.policy.destroy()
        self._state = None
        self._sharing = unshared
        self._is_amid_step = False
        gc.collect()
        nn.functional.linear = _linear
        if self._owns_group:
            leave_process_group(_import_deepspeed())
        self._owns_group = False

    @property
    def _must_clip_itself(self) -> bool:
        """At stage 0 in float32 DeepSpeed reports no gradient norm, so the engine takes it before each step."""
        return self._trainer.zero_stage == 0 and self._dtype == "float32"

    def _started(self) -> _DeepSpeedStepEngine:
        if self._state is None:
            raise EngineError("the training engine is not started: call start() first")
        return self._state

    def _deepspeed_config(self) -> dict[str, Any]:
        max_norm = 0.0 if self._must_clip_itself else self._settings.optimizer.max_gradient_norm
        return deepspeed_config(self._trainer, self._dtype, max_norm)


class _SavingTo:
    """DeepSpeed's checkpoint engine, but for the files, which become those of a part of ours."""

    def __init__(self, inner: Any, part: CheckpointPart) -> None:
        self._inner = inner
        self._part = part

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        """What DeepSpeed calls for each file of this rank."""
        self._part.add(str(Path(path).relative_to(self._part.directory)), state_dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def _saving_to(policy: Any, part: CheckpointPart) -> Iterator[None]:
    own = policy.checkpoint_engine
    policy.checkpoint_engine = _SavingTo(own, part)
    try:
        yield
    finally:
        policy.checkpoint_engine = own


class _ClippingBeforeStep:
    """Clips the gradients of an optimizer each time before it steps, and keeps their norm before that."""

    def __init__(self, adamw: torch.optim.Optimizer) -> None:
        self.max_norm = 0.0
        self.norm = 0.0
        adamw.register_step_pre_hook(self._clip)

    def _clip(self, adamw: torch.optim.Optimizer, *_: object) -> None:
        parameters = [parameter for group in adamw.param_groups for parameter in group["params"]]
        self.norm = nn.utils.clip_grad_norm_(parameters, self.max_norm).item()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _DeepSpeedStepEngine:
    """DeepSpeed's engine around a policy, as `trainer.step.ports.StepEngine` wants it.

    `clipping` is None where DeepSpeed clips. DeepSpeed averages gradients over ranks, so each rank's loss is scaled by
    their number.
    """

    prepared: PreparedPolicy
    policy: Any
    packing: bool
    clipping: _ClippingBeforeStep | None
    rank: int = field(default_factory=torch.distributed.get_rank)
    world_size: int = field(default_factory=torch.distributed.get_world_size)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.policy.device
        return device

    def reference(self) -> AnyPolicy:
        return self.prepared.reference(self.policy, self.device)

    def gather(self, numbers: Float64Array) -> list[Float64Array]:
        return gather_numbers(numbers, self.device)

    def backward(self, loss: Tensor) -> None:
        self.policy.backward(loss * float(self.world_size) if self.world_size > 1 else loss)

    def apply_gradients(self, optimizer: OptimizerConfig, learning_rate: float) -> float:
        set_adamw(self.policy.optimizer, optimizer, learning_rate)
        if self.clipping is not None:
            self.clipping.max_norm = optimizer.max_gradient_norm
            self.policy.step()
            return self.clipping.norm
        self.policy.optimizer.clip_grad = optimizer.max_gradient_norm
        self.policy.step()
        return float(self.policy.get_global_grad_norm())


def _import_deepspeed() -> Any:
    """DeepSpeed without what it would compile: shared-memory collectives (half a minute) and kernels of Muon."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import deepspeed  # noqa: PLC0415 - reads the environment while it is imported

    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})
    deepspeed.utils.logger.setLevel(logging.ERROR)
    return deepspeed
