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


def at_level_with_credit(
    log_ratios_BR: Tensor, advantages_BR: Tensor, mask_BR: Tensor, level: RatioLevel
) -> Tensor:
    """`at_level`, but where tokens of a response have advantages of their own, each one's gradient is its own.

    The ratio of a whole response, times each token's advantage, would give every token the gradient of their mean. So
    for such responses (turns with rewards, `gae`) the value stays the response's and the gradient is the token's, as in
    GSPO-token (arXiv 2507.18071, equations 13 and 14):

        sg(s) pi / sg(pi)       s as `at_level` has it; with `sequence` the gradient is as many times as large as the
                                response has tokens, as it is where all have one advantage

    Where all trained tokens of a response have one advantage both have the same gradient, and it is computed as before.

    Args:
        log_ratios_BR: from `log_ratios`.
        advantages_BR: of each token; (B, 1) has none of their own.
        mask_BR: bool, True where a token is trained.
        level: see `at_level`.
    """
    of_response_BR = at_level(log_ratios_BR, mask_BR, level)
    if level == "token" or advantages_BR.shape[1] == 1:
        return of_response_BR
    highest_B1 = advantages_BR.masked_fill(~mask_BR, -math.inf).amax(dim=1, keepdim=True)
    lowest_B1 = advantages_BR.masked_fill(~mask_BR, math.inf).amin(dim=1, keepdim=True)
    differ_B1 = highest_B1 > lowest_B1
    if not differ_B1.any():
        return of_response_BR
    factors_B1 = mask_BR.sum(dim=1, keepdim=True) if level == "sequence" else 1
    own_BR = of_response_BR.detach() + factors_B1 * (log_ratios_BR - log_ratios_BR.detach())
    return torch.where(differ_B1, own_BR, of_response_BR)


@torch.no_grad()
def outside(log_ratios_BR: Tensor, mask_BR: Tensor, low: float | None, high: float | None) -> Tensor:
    """Bool: unmasked positions whose ratio is below `low` or above `high`; None is no bound."""
    floor = -math.inf if not low else math.log(low)
    ceiling = math.inf if high is None else math.log(high)
    return mask_BR & ((log_ratios_BR < floor) | (log_ratios_BR > ceiling))
