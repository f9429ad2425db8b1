"""Off-policy statistics of a training step, accumulated over micro-batches and summed up once.

Shapes: B samples of a micro-batch, R response positions. w = exp(log pi - mu) per trained token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSums:
    """Sums over trained tokens; `+` adds them and takes the larger maxima."""

    num_tokens: int = 0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    ratio_max: float = 0.0
    num_clipped: int = 0
    divergence: float = 0.0
    log_ratio_max: float = 0.0

    def __add__(self, other: RatioSums) -> RatioSums:
        return RatioSums(
            num_tokens=self.num_tokens + other.num_tokens,
            ratio=self.ratio + other.ratio,
            ratio_squared=self.ratio_squared + other.ratio_squared,
            ratio_max=max(self.ratio_max, other.ratio_max),
            num_clipped=self.num_clipped + other.num_clipped,
            divergence=self.divergence + other.divergence,
            log_ratio_max=max(self.log_ratio_max, other.log_ratio_max),
        )

    def summary(self) -> dict[str, float]:
        """Figures for the ledger; empty when no token was trained.

        `divergence` estimates KL(behaviour || current) with w - 1 - log w, which is never negative (the k3 estimator).
        `effective_sample_size` is (sum w)^2 / (N sum w^2), 1 on policy.
        """
        if self.num_tokens == 0:
            return {}
        return {
            "ratio_mean": self.ratio / self.num_tokens,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.num_clipped / self.num_tokens,
            "divergence": self.divergence / self.num_tokens,
            "effective_sample_size": self.ratio**2 / (self.num_tokens * self.ratio_squared),
        }


@torch.no_grad()
def ratio_sums(
    log_ratios_BR: Tensor, advantages_B: Tensor, mask_BR: Tensor, *, clip_low: float, clip_high: float
) -> RatioSums:
    """Sums over the unmasked tokens of one micro-batch. A token is clipped when the clip removes its gradient."""
    log_ratios_N = log_ratios_BR.detach()[mask_BR]
    if log_ratios_N.numel() == 0:
        return RatioSums()
    ratios_N = log_ratios_N.exp()
    advantages_N = advantages_B[:, None].expand_as(mask_BR)[mask_BR]
    clipped_N = ((advantages_N > 0) & (ratios_N > 1 + clip_high)) | (
        (advantages_N < 0) & (ratios_N < 1 - clip_low)
    )
    sums = torch.stack(
        [
            ratios_N.sum(),
            ratios_N.square().sum(),
            ratios_N.max(),
            clipped_N.sum().to(ratios_N.dtype),
            (ratios_N - 1 - log_ratios_N).sum(),
            log_ratios_N.abs().max(),
        ]
    ).tolist()
    return RatioSums(
        num_tokens=log_ratios_N.numel(),
        ratio=sums[0],
        ratio_squared=sums[1],
        ratio_max=sums[2],
        num_clipped=round(sums[3]),
        divergence=max(sums[4], 0.0),
        log_ratio_max=sums[5],
    )


def finite(statistics: dict[str, float]) -> dict[str, float]:
    """The entries that are numbers a record may hold."""
    return {name: value for name, value in statistics.items() if math.isfinite(value)}
