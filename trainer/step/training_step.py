"""How a batch is trained: the stages of a training step, in their order. All engines train by this function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.step.critic import with_token_advantages
from trainer.step.gathering import sum_over_ranks
from trainer.step.gradients import accumulate_gradients
from trainer.step.kl_rewards import with_kl_in_reward
from trainer.step.minibatches import rank_minibatches
from trainer.step.off_policy import step_statistics
from trainer.step.old_logprobs import old_and_reference_logprobs
from trainer.step.ports import StepResult
from trainer.step.schedule import next_rates

if TYPE_CHECKING:
    from trainer.step.ports import StepEngine, StepSettings, TrainingBatch


def train_step(
    batch: TrainingBatch, engine: StepEngine, settings: StepSettings, *, steps_taken: int
) -> StepResult:
    """Train the policy of `engine` on one batch: one optimizer step per minibatch of its plan.

    A function of batch, weights, optimizer state and settings alone; it draws no random numbers. Every rank calls it
    with the same plan and gets the same result.

    Args:
        batch: of all ranks, its advantages computed from rewards (`trainer.step.batch`); a rank needs tokens only of
            the samples that the plan gives it.
        engine: the policy of this rank, and how gradients are made and applied.
        settings: algorithm, optimizer and length of the schedule.
        steps_taken: optimizer steps before this training step; the learning-rate schedule continues from there.

    Raises:
        EngineError: values of the critic are not finite, or the policy has no value head and needs one.
    """
    algorithm = settings.algorithm
    batch, reward_statistics = with_kl_in_reward(batch, engine, algorithm)
    batch, value_statistics = with_token_advantages(batch, engine, algorithm)
    fixed_logprobs = old_and_reference_logprobs(batch, engine, algorithm)
    minibatches = rank_minibatches(batch, engine.rank, algorithm)
    rates = next_rates(steps_taken, len(minibatches), settings)
    shares, norms = [], []
    for minibatch, rate in zip(minibatches, rates, strict=True):
        shares.append(accumulate_gradients(minibatch, batch, fixed_logprobs, engine, algorithm))
        norms.append(engine.apply_gradients(settings.optimizer, rate))
    losses, ratio_sums = sum_over_ranks(shares, engine)
    return StepResult(
        losses=losses,
        gradient_norms=tuple(norms),
        learning_rates=rates,
        statistics=reward_statistics | value_statistics | step_statistics(ratio_sums),
    )
