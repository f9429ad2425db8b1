"""The DeepSpeed engine: ZeRO stages 0 to 3, on CPU (gloo) and on GPU (nccl).

Consumes training batches, produces weights. Alone it is one rank that opens no port; among several, every rank has such
an engine and all make the same calls (`leading.py`, `following.py`). Gradients are accumulated by DeepSpeed until
`step`, which reduces, clips and applies them; its own schedulers, timers and random-number helpers are not used, so
that a step is a function of weights, optimizer state and batch alone.

On crash: nothing is kept outside the process but checkpoints; the caller rebuilds the engine from one of these or
from version 0. DeepSpeed's checkpoints are pickles: only directories that the run itself wrote are loaded.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import warnings
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

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
    load_model,
    model_config_json,
    to_safetensors,
)
from trainer.model.reference import ReferenceModel
from trainer.step.gradients import Anchors, Minibatch, accumulate, step_statistics, step_work
from trainer.step.off_policy import RatioSums
from trainer.step.optimizer import adamw_settings
from trainer.step.schedule import next_rates

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from transformers import PreTrainedModel

    from rollog.settings.training import TrainerConfig
    from trainer.engines.multi_rank.ranks import RankGroup
    from trainer.engines.ports import StepSettings
    from trainer.step.gradients import StepWork

checkpoint_tag = "engine"
_linear = nn.functional.linear
"""PyTorch's own. Stage 3 puts another in its place, for the whole process; gradients would then arrive in another order
than on a rank that has not, and stage 2 adds up what arrives."""

_T = TypeVar("_T")


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
        self._model: PreTrainedModel | None = None
        self._reference: ReferenceModel | None = None
        self._engine: Any = None
        self._owns_group = False
        self._norm = 0.0

    def start(self, model_path: str, weights_path: Path | None = None) -> None:
        """Build model, optimizer and process group."""
        self.close()
        compute_deterministically(self._trainer.num_threads, self._trainer.reproducible)
        model = load_model(model_path, weights_path, self._dtype)
        policy = Policy(model, self._temperature, with_value_head=self._settings.algorithm.needs_values)
        if self._trainer.activation_checkpointing:
            checkpoint_activations(model)
        if self._trainer.packing:
            check_packing(policy)
        add_adapters(model, self._trainer)
        optimizer = torch.optim.AdamW(
            trained_parameters(policy),
            lr=self._settings.optimizer.learning_rate,
            **adamw_settings(self._settings.optimizer),
            fused=True,
        )
        if self._clips_itself:
            optimizer.register_step_pre_hook(self._clip)
        deepspeed = _import_deepspeed()
        self._owns_group = _join_process_group(deepspeed, self._ranks, self._trainer.rank_timeout_seconds)
        self._engine = deepspeed.initialize(
            model=policy, optimizer=optimizer, config=self._deepspeed_config(), dist_init_required=False
        )[0]
        _limit_waiting(self._trainer.rank_timeout_seconds)
        self._model = model
        self._reference = ReferenceModel(model_path, weights_path, self._temperature, self._dtype)
        self._steps_taken = 0

    def train_step(self, batch: TrainingBatch) -> StepResult:
        """One optimizer step per minibatch."""
        engine = self._started()
        engine.train()
        work = self._work(batch)
        rates = next_rates(self._steps_taken, len(work.minibatches), self._settings)
        outcomes = [
            self._optimizer_step(part, anchors, rate)
            for part, anchors, rate in zip(work.minibatches, work.anchors, rates, strict=True)
        ]
        self._steps_taken += len(rates)
        shares = _from_all_ranks([(loss, sums) for loss, sums, _ in outcomes])
        return StepResult(
            losses=tuple(sum(loss for loss, _ in ranks) for ranks in shares),
            gradient_norms=tuple(norm for _, _, norm in outcomes),
            learning_rates=rates,
            statistics=work.statistics
            | step_statistics([sum((sums for _, sums in ranks), start=RatioSums()) for ranks in shares]),
        )

    def change_settings(self, settings: StepSettings) -> None:
        """Put the new settings into optimizer and clipping."""
        engine = self._started()
        self._settings = settings
        for group in engine.optimizer.param_groups:
            group.update(adamw_settings(settings.optimizer))
        if not self._clips_itself:
            engine.optimizer.clip_grad = settings.optimizer.max_gradient_norm

    def export_weights(self) -> bytes:
        """All weights as safetensors, gathered from their partitions at stage 3; on other ranks than 0 nothing."""
        self._started()
        assert self._model is not None
        is_first = torch.distributed.get_rank() == 0
        copies = {}
        for tensor in published_tensors(self._model):
            with self._gathered(tensor.parts):
                if is_first:
                    copies[tensor.name] = tensor.value().to("cpu", copy=True)
        return to_safetensors(copies, self._dtype) if is_first else b""

    def save_checkpoint(self, directory: Path) -> None:
        """Write DeepSpeed's own checkpoint below `directory`."""
        self._started().save_checkpoint(
            str(directory),
            tag=checkpoint_tag,
            client_state={"steps_taken": self._steps_taken},
            save_latest=False,
        )

    def load_checkpoint(self, directory: Path) -> None:
        """Restore weights, optimizer and schedule. Call it on a newly started engine."""
        loaded, state = self._started().load_checkpoint(str(directory), tag=checkpoint_tag)
        if loaded is None or "steps_taken" not in state:
            raise EngineError(
                f"{directory} holds no DeepSpeed checkpoint of this kind; remove that directory"
            )
        self._steps_taken = int(state["steps_taken"])

    def describe(self) -> EngineDescription:
        """Name, size, type and versions."""
        engine = self._started()
        assert self._model is not None
        return EngineDescription(
            name="deepspeed",
            world_size=torch.distributed.get_world_size(),
            zero_stage=self._trainer.zero_stage,
            dtype=self._dtype,
            device=torch.cuda.get_device_name() if engine.device.type == "cuda" else engine.device.type,
            model_config_json=model_config_json(self._model),
            versions={
                "deepspeed": _import_deepspeed().__version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                **adapter_versions(self._trainer),
                **arithmetic_facts(engine.device),
            },
        )

    def close(self) -> None:
        """Free the model and leave the process group."""
        if self._engine is not None:
            self._engine.destroy()
        self._engine = self._model = self._reference = None
        gc.collect()
        nn.functional.linear = _linear
        if self._owns_group:
            _leave_process_group()
        self._owns_group = False

    def _work(self, batch: TrainingBatch) -> StepWork:
        algorithm, device = self._settings.algorithm, self._engine.device
        assert self._reference is not None
        return step_work(
            self._engine,
            self._reference.policy(device) if algorithm.needs_reference else None,
            batch,
            algorithm,
            rank=torch.distributed.get_rank(),
            device=device,
            packing=self._trainer.packing,
            gather=_gather,
        )

    def _optimizer_step(
        self, minibatch: Minibatch, anchors: list[Anchors], rate: float
    ) -> tuple[float, RatioSums, float]:
        engine = self._engine
        for group in engine.optimizer.param_groups:
            group["lr"] = rate
        loss, sums = accumulate(
            engine,
            engine.backward,
            minibatch,
            self._settings.algorithm,
            anchors=anchors,
            device=engine.device,
            scale=float(torch.distributed.get_world_size()),
        )
        engine.step()
        norm = self._norm if self._clips_itself else engine.get_global_grad_norm()
        return loss, sums, float(norm)

    @property
    def _clips_itself(self) -> bool:
        """At stage 0 in float32 DeepSpeed reports no gradient norm, so `_clip` takes it before each step."""
        return self._trainer.zero_stage == 0 and self._dtype == "float32"

    def _clip(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._norm = nn.utils.clip_grad_norm_(parameters, self._settings.optimizer.max_gradient_norm).item()

    def _gathered(self, tensors: Iterable[Tensor]) -> AbstractContextManager[Any]:
        shared_out = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
        if self._trainer.zero_stage < 3 or not shared_out:  # noqa: PLR2004 - ZeRO's number
            return nullcontext()
        gathered: AbstractContextManager[Any] = _import_deepspeed().zero.GatheredParameters(shared_out)
        return gathered

    def _started(self) -> Any:
        if self._engine is None:
            raise EngineError("the training engine is not started: call start() first")
        return self._engine

    def _deepspeed_config(self) -> dict[str, Any]:
        return {
            "train_micro_batch_size_per_gpu": 1,
            "managed_gradient_accumulation": False,
            "gradient_clipping": 0.0 if self._clips_itself else self._settings.optimizer.max_gradient_norm,
            "zero_optimization": {"stage": self._trainer.zero_stage, "overlap_comm": False},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": self._dtype == "bfloat16"},
            "steps_per_print": 2**31,
        }


def _import_deepspeed() -> Any:
    """DeepSpeed without what it would compile: shared-memory collectives (half a minute) and kernels of Muon."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import deepspeed  # noqa: PLC0415 - reads the environment while it is imported

    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})
    deepspeed.utils.logger.setLevel(logging.ERROR)
    return deepspeed


def _join_process_group(deepspeed: Any, ranks: RankGroup | None, timeout_seconds: float) -> bool:
    """Join the group of these ranks, or be a group of one that needs no address.

    Returns whether it was made for this: an engine beside another one shares its group.
    """
    os.environ.setdefault("LOCAL_RANK", "0")
    if ranks is None or ranks.is_on_this_machine:
        _prefer_loopback()
    is_new = not torch.distributed.is_initialized()
    if is_new:
        torch.distributed.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            store=torch.distributed.HashStore() if ranks is None else ranks.fresh_store(),  # type: ignore[attr-defined]
            rank=0 if ranks is None else ranks.rank,
            world_size=1 if ranks is None else ranks.world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
    deepspeed.comm.comm.cdb = None
    deepspeed.init_distributed(dist_init_required=False, auto_mpi_discovery=False, verbose=False)
    return is_new


def _limit_waiting(timeout_seconds: float) -> None:
    """Give the groups that DeepSpeed has made the limit, too: they begin with PyTorch's own of half an hour."""
    distributed: Any = torch.distributed.distributed_c10d
    for group in list(distributed._world.pg_map):  # noqa: SLF001 - there is no public list of groups
        distributed._set_pg_timeout(timedelta(seconds=timeout_seconds), group)  # noqa: SLF001 - nor another way


def _prefer_loopback() -> None:
    """Keep gloo from looking up this machine's name, which fails where it does not resolve."""
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _leave_process_group() -> None:
    deepspeed = _import_deepspeed()
    if torch.distributed.is_initialized():
        deepspeed.comm.destroy_process_group()
    deepspeed.comm.comm.cdb = None


def _gather(found: dict[int, _T]) -> dict[int, _T]:
    """The entries of all ranks."""
    return dict(chain.from_iterable(entries.items() for entries in _from_all_ranks([found])[0]))


def _from_all_ranks(outcomes: list[_T]) -> list[tuple[_T, ...]]:
    """Each entry as every rank has it."""
    world_size = torch.distributed.get_world_size()
    if world_size == 1:
        return [(outcome,) for outcome in outcomes]
    gathered: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(gathered, outcomes)
    return list(zip(*gathered, strict=True))
