"""Probability ratios, token by token or response by response.

Masked positions are replaced by constants before any arithmetic, so nothing they hold, NaN included, reaches a value
or a gradient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rollog.settings.training import RatioLevel

max_log_ratio = 20.0
"""|log r| is cut here, so that exp stays finite; beyond it a ratio has no gradient."""


def log_ratios(logprobs_BR: Tensor, others_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """The log ratio of two policies at unmasked positions, 0 elsewhere, cut at +-`max_log_ratio`."""
    current_BR = torch.where(mask_BR, logprobs_BR, 0.0)
    others_BR = torch.where(mask_BR, others_BR, 0.0)
    return (current_BR - others_BR).clamp(-max_log_ratio, max_log_ratio)


def at_level(log_ratios_BR: Tensor, mask_BR: Tensor, level: RatioLevel) -> Tensor:
    """The log ratio that every token of a response is judged by.

    Its own (`token`); that of the whole response, the sum (`sequence`: the ratio is pi(y|x) / mu(y|x)); or the mean
    (`sequence_mean`: the ratio is (pi(y|x) / mu(y|x))^(1/|y|), GSPO, arXiv 2507.18071, equation 7). The latter two are
    the same at all positions of a response, and their gradient reaches all of its tokens.

    Args:
        log_ratios_BR: from `log_ratios`.
        mask_BR: bool, True where a token is trained.
        level: see above.
    """
    if level == "token":
        return log_ratios_BR
    sums_B = log_ratios_BR.sum(dim=1)
    if level == "sequence_mean":
        sums_B = sums_B / mask_BR.sum(dim=1).clamp(min=1)
    return sums_B.clamp(-max_log_ratio, max_log_ratio)[:, None].expand_as(log_ratios_BR)


@torch.no_grad()
def outside(log_ratios_BR: Tensor, mask_BR: Tensor, low: float | None, high: float | None) -> Tensor:
    """Bool: unmasked positions whose ratio is below `low` or above `high`; None is no bound."""
    floor = -math.inf if not low else math.log(low)
    ceiling = math.inf if high is None else math.log(high)
    return mask_BR & ((log_ratios_BR < floor) | (log_ratios_BR > ceiling))
