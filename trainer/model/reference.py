"""The reference model: what the run began with, frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.model.policy import Policy, load_model
from trainer.model.sharing import gather_when_called
from trainer.model.varlen_attention import attend_without_masks

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from trainer.model.output_layer import OutputComputation
    from trainer.model.sharing import Sharing


@dataclass(slots=True)
class ReferenceModel:
    """A copy of the model that an engine was started with, loaded when it is first asked for; it computes as that does.

    Engines start with version 0 also where they then continue from a checkpoint, so a redo has the same reference.
    It is shared out as that is, too: all ranks ask for it, and call it, alike. `masks` is false where packed rows are
    attended to without.
    """

    model_path: str
    weights_path: Path | None
    temperature: float
    dtype: str
    computation: OutputComputation
    sharing: Sharing
    masks: bool = True
    _policy: Policy | None = None

    def policy(self, device: torch.device) -> Policy:
        """The model on `device`. Raises DataError or WeightsError where it cannot be loaded any more."""
        if self._policy is None:
            model = load_model(self.model_path, self.weights_path, self.dtype, self.sharing)
            if not self.masks:
                attend_without_masks(model)
            policy = Policy(model, self.temperature, computation=self.computation)
            self._policy = policy.requires_grad_(requires_grad=False).eval().to(device)
            gather_when_called(policy, self.sharing)
        return self._policy
