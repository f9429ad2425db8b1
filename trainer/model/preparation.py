"""Preparing a policy for training: what every engine does before it builds its optimizer, in one order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import transformers

from rollog.kernel.errors import ConfigError
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.files import adapter_at
from trainer.model.adapters import WithoutAdapters, adapter_versions, add_adapters, load_published
from trainer.model.arithmetic import arithmetic_facts
from trainer.model.output_layer import OutputComputation, find_transform, output_layer
from trainer.model.packing_probe import check_packing
from trainer.model.policy import Policy, checkpoint_activations, load_model
from trainer.model.reference import ReferenceModel
from trainer.model.sharing import unshared
from trainer.model.varlen_attention import attend_without_masks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from torch import nn
    from transformers import PreTrainedModel

    from rollog.settings.training import TrainerConfig
    from trainer.model.sharing import Sharing

log = get_logger("policy")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedPolicy:
    """The language model, the policy around it, and the copy of it that is loaded when asked for.

    Model and policy are on the CPU, or shared out among ranks.
    """

    model: PreTrainedModel
    policy: Policy
    copy: ReferenceModel
    has_adapters: bool

    def reference(self, trained: nn.Module, device: torch.device) -> Callable[..., Any]:
        """The model that the run began with, on `device`; called like `trained`, the policy or an engine around it.

        With adapters it is `trained` without them: their own weights are what the run began with. Else a frozen copy.
        """
        return WithoutAdapters(trained) if self.has_adapters else self.copy.policy(device)


def prepare_policy(
    model_path: str,
    weights_path: Path | None,
    trainer: TrainerConfig,
    *,
    temperature: float,
    dtype: str,
    with_value_head: bool,
    sharing: Sharing = unshared,
) -> PreparedPolicy:
    """Load the model and make it what `trainer` wants to train; `compute_deterministically` was called.

    The probe for packing comes before adapters, which do nothing yet.

    Args:
        model_path: directory or name of the model.
        weights_path: a safetensors file in place of the model's own weights.
        trainer: threads, activation checkpointing, packing, adapters.
        temperature: logits are divided by it, as when samples were drawn.
        dtype: `float32` or `bfloat16`.
        with_value_head: whether the policy gives values beside log-probabilities.
        sharing: how the engine shares weights out among ranks, all of which make this call.

    Raises:
        DataError: the model cannot be loaded, checkpointed or packed.
        WeightsError: the weights do not fit the model.
        ConfigError: layers that are to have adapters are not there.
        EngineError: the model has no output layer.
    """
    model = load_model(model_path, weights_path, dtype, sharing)
    computation = output_computation(model, trainer, sharing)
    masks = not (trainer.packing and trainer.packed_attention == "varlen")
    if not masks and (reason := attend_without_masks(model)) is not None:
        log.info("packed rows are attended to under a mask", model=type(model).__name__, reason=reason)
    policy = Policy(model, temperature, with_value_head=with_value_head, computation=computation)
    if trainer.activation_checkpointing:
        checkpoint_activations(model)
    if trainer.packing:
        check_packing(policy, sharing)
    add_adapters(model, trainer)
    if weights_path is not None and adapter_at(weights_path) is not None:
        load_published(model, weights_path, sharing)
    return PreparedPolicy(
        model=model,
        policy=policy,
        copy=ReferenceModel(model_path, weights_path, temperature, dtype, computation, sharing, masks),
        has_adapters=trainer.lora_rank > 0,
    )


def output_computation(
    model: PreTrainedModel, trainer: TrainerConfig, sharing: Sharing = unshared
) -> OutputComputation:
    """How log-probabilities come from the output layer of `model`; what cannot be done in chunks is said in the log.

    Raises ConfigError where `trainer.output_layer_dtype` asks for what the layer cannot.
    """
    layer, dtype = output_layer(model), None
    if trainer.output_layer_dtype == "float32":
        if not isinstance(layer, torch.nn.Linear):
            raise ConfigError(
                f'trainer.output_layer_dtype = "float32": the output layer of {type(model).__name__} is a '
                f'{type(layer).__name__}, not a linear layer; set it to "model"'
            )
        dtype = torch.float32
    if trainer.logprob_chunk_tokens == 0:
        return OutputComputation(dtype=dtype)
    transform = find_transform(model, sharing)
    if isinstance(transform, str):
        log.warning(
            "log-probabilities are computed from the logits of all tokens at once, which takes memory",
            model=type(model).__name__,
            reason=transform,
        )
        return OutputComputation(dtype=dtype)
    return OutputComputation(chunk_tokens=trainer.logprob_chunk_tokens, transform=transform, dtype=dtype)


def library_versions(trainer: TrainerConfig, device: torch.device) -> dict[str, str]:
    """What the results of a prepared policy depend on: library versions, and what they compute with on `device`."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **adapter_versions(trainer),
        **arithmetic_facts(device, trainer.reproducible),
    }
