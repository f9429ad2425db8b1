"""Advantages: how much better a rollout was than what it is compared with.

    group           A_i = (r_i - mean(r)) / (std(r) + epsilon)          mean and std over the G rewards of one prompt
    leave_one_out   A_i = r_i - mean of the other G - 1 rewards
    batch           A_i = (r_i - mean(r)) / (std(r) + epsilon)          mean and std over all rewards of the batch
    group_batch     as batch, of r_i - mean over its group
    return          A_i = r_i
    gae             A_t = delta_t + discount lambda A_(t+1)             delta_t = r_t + discount V_(t+1) - V_t

GRPO (arXiv 2402.03300, section 4.1.2) has `group`, Dr. GRPO (arXiv 2503.20783) the same without division; RLOO (arXiv
2402.14740) leave_one_out; REINFORCE++ (arXiv 2501.03262) batch, its variant with baseline group_batch; PPO (arXiv
1707.06347) gae (arXiv 1506.02438, equation 16). Deviations are unbiased (divisor n - 1).

Turns that have rewards of their own are compared as rollouts are, all turns of a group or batch with each other, and
each turn gets the sum of what it and those after it have (process supervision, arXiv 2402.03300, section 4.1.3):

    A_i(turn k) = sum over turns j >= k of the advantage of r_i(j)

Otherwise all but gae give one advantage to a whole response. With gae it is 0 until `trainer.step.critic` has asked
the policy for values.

Computed in float64 and rounded to float32 (sums over turns once more), so the result does not depend on the order of
the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schemas.arrays import Float32Array, float32_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.settings.training import AlgorithmConfig

    Float64Array = np.ndarray[tuple[int], np.dtype[np.float64]]

std_epsilon = 1e-6
"""Added to the standard deviation, so that a group of equal rewards gets advantages of zero."""


def advantages_of(groups: Sequence[Sequence[float]], algorithm: AlgorithmConfig) -> list[Float32Array]:
    """The advantages of a whole batch, group by group, as `algorithm.advantage` says.

    Args:
        groups: per group of the batch its rewards.
        algorithm: says what a reward is compared with, and whether the difference is divided by a deviation.

    Raises:
        ValueError: a reward is not finite, or a group is empty.
    """
    normalize_std = algorithm.normalize_std
    match algorithm.advantage:
        case "group":
            return [group_advantages(rewards, normalize_std=normalize_std) for rewards in groups]
        case "leave_one_out":
            return [leave_one_out_advantages(rewards, normalize_std=normalize_std) for rewards in groups]
        case "batch":
            return batch_advantages(groups, normalize_std=normalize_std)
        case "group_batch":
            centred = [_centred(_checked(rewards)).tolist() for rewards in groups]
            return batch_advantages(centred, normalize_std=normalize_std)
        case "return":
            return [float32_array(_checked(rewards)) for rewards in groups]
        case "gae":
            return [float32_array(np.zeros_like(_checked(rewards))) for rewards in groups]


def turn_advantages(
    groups: Sequence[Sequence[Sequence[float]]], algorithm: AlgorithmConfig
) -> list[list[tuple[float, ...]]]:
    """The advantages of a whole batch, per turn of each sample; see `advantages_of`.

    Args:
        groups: per group of the batch, per sample, the rewards of its turns; of one turn where it is one whole.
        algorithm: as there.

    Raises:
        ValueError: a reward is not finite, a group is empty, or a sample has no turn.
    """
    pooled = advantages_of([[reward for turns in group for reward in turns] for group in groups], algorithm)
    return [
        [
            _sums_to_the_end(of_sample)
            for of_sample in np.split(values, np.cumsum([len(turns) for turns in group])[:-1])
        ]
        for group, values in zip(groups, pooled, strict=True)
    ]


def _sums_to_the_end(values: Float32Array) -> tuple[float, ...]:
    if values.size == 0:
        raise ValueError("a sample without a turn has no advantage")
    sums = np.cumsum(values[::-1].astype(np.float64))[::-1]
    return tuple(float32_array(sums).tolist())


def group_advantages(
    rewards: Sequence[float], *, normalize_std: bool = True, epsilon: float = std_epsilon
) -> Float32Array:
    """The advantage of each member of one group.

    Args:
        rewards: the G rewards of one prompt.
        normalize_std: divide by the standard deviation; without it only the mean is taken off (Dr. GRPO,
            arXiv 2503.20783).
        epsilon: added to the standard deviation.

    Raises:
        ValueError: a reward is not finite, or the group is empty.
    """
    return float32_array(
        _normalized(_centred(_checked(rewards)), normalize_std=normalize_std, epsilon=epsilon)
    )


def leave_one_out_advantages(
    rewards: Sequence[float], *, normalize_std: bool = False, epsilon: float = std_epsilon
) -> Float32Array:
    """The advantage of each member of one group over the mean of the others; 0 in a group of one.

    r_i - (1 / (G - 1)) sum_(j != i) r_j = G / (G - 1) (r_i - mean(r)) (RLOO, arXiv 2402.14740). Arguments
    and errors are those of `group_advantages`; the deviation is that of the group's rewards.
    """
    centred = _centred(_checked(rewards))
    scaled = _normalized(centred, normalize_std=normalize_std, epsilon=epsilon)
    return float32_array(scaled * (centred.size / max(centred.size - 1, 1)))


def batch_advantages(
    groups: Sequence[Sequence[float]], *, normalize_std: bool = True, epsilon: float = std_epsilon
) -> list[Float32Array]:
    """The advantages of a batch against its own mean and deviation (REINFORCE++, arXiv 2501.03262).

    Each rollout counts once, however long it is. Arguments and errors are those of `group_advantages`.
    """
    values = [_checked(rewards) for rewards in groups]
    if not values:
        return []
    everyone = _normalized(_centred(np.concatenate(values)), normalize_std=normalize_std, epsilon=epsilon)
    bounds = np.cumsum([of_group.size for of_group in values])[:-1]
    return [float32_array(of_group) for of_group in np.split(everyone, bounds)]


def gae_advantages(
    values: Float64Array, rewards: Float64Array, *, discount: float = 1.0, gae_lambda: float = 0.95
) -> Float64Array:
    """The advantage of each trained token of one response, generalized advantage estimation.

    Nothing is to come after the last of them, however the response ended.

    Args:
        values: V_t, before each of the N trained tokens, what is expected to come.
        rewards: r_t, what came with each of them.
        discount: per token.
        gae_lambda: 1 gives the discounted sum of rewards - V_t, 0 gives delta_t.
    """
    advantages = np.zeros_like(values)
    next_value, next_advantage = 0.0, 0.0
    for t in reversed(range(values.size)):
        delta = rewards[t] + discount * next_value - values[t]
        next_advantage = delta + discount * gae_lambda * next_advantage
        advantages[t], next_value = next_advantage, values[t]
    return advantages


def overlong_penalty(num_tokens: int, *, max_tokens: int, share: float, penalty: float) -> float:
    """What a response loses of its reward for its length: nothing at first, then linearly more, up to `penalty`.

    Soft over-long punishment (DAPO, arXiv 2503.14476, equation 13), with L_max = `max_tokens` and L_cache = `share` of
    it: 0 up to L_max - L_cache tokens, `penalty` from L_max on. The paper has L_cache = 4096 of 20480, and 1.
    """
    cache = share * max_tokens
    excess = num_tokens - (max_tokens - cache)
    return penalty * min(excess / cache, 1.0) if cache > 0 and excess > 0 else 0.0


def _checked(rewards: Sequence[float]) -> Float64Array:
    values = np.asarray(rewards, dtype=np.float64)
    if values.size == 0:
        raise ValueError("a group without rewards has no advantages")
    if not np.isfinite(values).all():
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    return values


def _centred(values: Float64Array) -> Float64Array:
    return values - _exact_mean(values)


def _normalized(centred: Float64Array, *, normalize_std: bool, epsilon: float) -> Float64Array:
    """Divided by the unbiased standard deviation, where there is one."""
    if not normalize_std or centred.size == 1:
        return centred
    deviation = float(np.sqrt(np.square(np.sort(np.abs(centred))).sum() / (centred.size - 1)))
    return centred / (deviation + epsilon)


def _exact_mean(values: Float64Array) -> float:
    """The mean, summed in sorted order: the same for every permutation, and exact for equal values."""
    ordered = np.sort(values)
    first = float(ordered[0])
    return first + float((ordered - first).sum()) / ordered.size
