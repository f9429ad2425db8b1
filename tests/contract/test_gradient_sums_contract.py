"""What every engine promises of the sum of many gradients in bfloat16, read where the optimizer takes it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from support.small_training import a_training_sample, make_model
from support.training_engines import step_settings, temperature

from rollog.settings.training import TrainerConfig
from schemas import MicroBatch
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.plain import PlainEngine
from trainer.step.ports import TrainingBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.engine

num_micro_batches = 128
"""A power of two, so that each micro-batch's share of the gradient is rounded as the whole gradient is."""

Wide = Literal["model", "float32"]


def deepspeed(
    zero_stage: int, dtype: str, gradient_dtype: Wide, *, offload_optimizer: bool = False
) -> DeepSpeedEngine:
    trainer = TrainerConfig(
        zero_stage=zero_stage,
        num_minibatches=1,
        gradient_dtype=gradient_dtype,
        offload_optimizer=offload_optimizer,
    )
    return DeepSpeedEngine(settings=without_clipping, trainer=trainer, temperature=temperature, dtype=dtype)


def plain(dtype: str, gradient_dtype: Wide) -> PlainEngine:
    trainer = TrainerConfig(num_minibatches=1, gradient_dtype=gradient_dtype)
    return PlainEngine(settings=without_clipping, trainer=trainer, temperature=temperature, dtype=dtype)


without_clipping = replace(
    step_settings, optimizer=step_settings.optimizer.model_copy(update={"max_gradient_norm": 1e9})
)
makers: dict[str, Callable[[str, Wide], Any]] = {
    "plain": plain,
    **{f"zero-{stage}": partial(deepspeed, stage) for stage in range(4)},
    **{f"zero-{stage}-offloaded": partial(deepspeed, stage, offload_optimizer=True) for stage in (1, 2, 3)},
}


def gradient_of(engine: Any, model_path: str, repeats: int) -> Tensor:
    """What the optimizer gets for so many copies of one sample, each a micro-batch: the gradient of their mean."""
    engine.start(model_path)
    state = vars(engine)["_state"]
    outer = state.optimizer if isinstance(engine, PlainEngine) else state.policy.optimizer
    adamw = getattr(outer, "optimizer", outer)  # DeepSpeed wraps it, but not at stage 0 in float32
    found: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        found.append(flat(group["params"] for group in optimizer.param_groups))

    adamw.register_step_pre_hook(keep)
    engine.train_step(
        TrainingBatch(
            samples=(a_training_sample(response_tokens=6),) * repeats,
            plan=tuple(MicroBatch(minibatch=0, rank=0, positions=(position,)) for position in range(repeats)),
        )
    )
    engine.close()
    assert len(found) == 1
    return found[0]


def flat(groups: Iterable[list[Tensor]]) -> Tensor:
    parts = [tensor.grad for group in groups for tensor in group]
    return torch.cat([part.detach().float().flatten().clone() for part in parts if part is not None])


def error(found: Tensor, exact: Tensor) -> float:
    """Relative; DeepSpeed pads its flat gradients with zeros."""
    num = min(len(found), len(exact))
    assert found[num:].abs().sum() == exact[num:].abs().sum() == 0
    return float((found[:num] - exact[:num]).norm() / exact[:num].norm())


@pytest.mark.parametrize(
    "maker",
    [
        pytest.param(maker, id=name, marks=[] if name == "plain" else pytest.mark.slow)
        for name, maker in makers.items()
    ],
)
def test_the_error_of_128_micro_batches_in_bfloat16_is_that_of_one(
    maker: Callable[[str, Wide], Any], tmp_path: Path
) -> None:
    model_path = make_model(tmp_path)
    exact = gradient_of(maker("float32", "model"), model_path, 1)
    of_one = error(gradient_of(maker("bfloat16", "float32"), model_path, 1), exact)
    of_many = error(gradient_of(maker("bfloat16", "float32"), model_path, num_micro_batches), exact)
    narrow = error(gradient_of(maker("bfloat16", "model"), model_path, num_micro_batches), exact)
    assert 0 < of_one < 0.1
    assert of_many == pytest.approx(of_one, rel=0.01)
    assert narrow > 2 * of_one
