"""Preparing a policy for training: what every engine does before it builds its optimizer, in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import transformers

from trainer.model.adapters import adapter_versions, add_adapters
from trainer.model.arithmetic import arithmetic_facts
from trainer.model.packing_probe import check_packing
from trainer.model.policy import Policy, checkpoint_activations, compute_deterministically, load_model
from trainer.model.reference import ReferenceModel

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from rollog.settings.training import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedPolicy:
    """The language model, the policy around it, both on the CPU, and the reference that is loaded when asked for."""

    model: PreTrainedModel
    policy: Policy
    reference: ReferenceModel


def prepare_policy(
    model_path: str,
    weights_path: Path | None,
    trainer: TrainerConfig,
    *,
    temperature: float,
    dtype: str,
    with_value_head: bool,
) -> PreparedPolicy:
    """Load the model and make it what `trainer` wants to train; from here on this process computes deterministically.

    The probe for packing comes before adapters, which do nothing yet, and before an engine shares out the weights.

    Args:
        model_path: directory or name of the model.
        weights_path: a safetensors file in place of the model's own weights.
        trainer: threads, activation checkpointing, packing, adapters.
        temperature: logits are divided by it, as when samples were drawn.
        dtype: `float32` or `bfloat16`.
        with_value_head: whether the policy gives values beside log-probabilities.

    Raises:
        DataError: the model cannot be loaded, checkpointed or packed.
        WeightsError: the weights do not fit the model.
        ConfigError: layers that are to have adapters are not there.
        EngineError: instructions cannot be pinned as `trainer.reproducible` says.
    """
    compute_deterministically(trainer.num_threads or 1, trainer.reproducible)
    model = load_model(model_path, weights_path, dtype)
    policy = Policy(model, temperature, with_value_head=with_value_head)
    if trainer.activation_checkpointing:
        checkpoint_activations(model)
    if trainer.packing:
        check_packing(policy)
    add_adapters(model, trainer)
    return PreparedPolicy(
        model=model,
        policy=policy,
        reference=ReferenceModel(model_path, weights_path, temperature, dtype),
    )


def library_versions(trainer: TrainerConfig, device: torch.device) -> dict[str, str]:
    """What the results of a prepared policy depend on: library versions, and what they compute with on `device`."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **adapter_versions(trainer),
        **arithmetic_facts(device, trainer.reproducible),
    }
