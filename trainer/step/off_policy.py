"""Off-policy statistics of a training step, accumulated over micro-batches and summed up once.

Shapes: B samples of a micro-batch, R response positions, N trained tokens. w = exp(log pi - mu) per trained token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

_of_first_minibatch = ("effective_sample_size", "divergence")
_maxima = frozenset({"ratio_max", "log_ratio_max", "fresh_log_ratio_max"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSums:
    """Sums over trained tokens; `+` adds them and takes the larger maxima.

    Fresh tokens are those that the very version generated that the training step began with; before the first update
    their ratio says how far the inference engine's log-probabilities are from the trainer's, and nothing of staleness.
    `num_measured` counts tokens whose version is known.
    """

    num_tokens: int = 0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    ratio_max: float = 0.0
    num_clipped: int = 0
    num_extreme: int = 0
    divergence: float = 0.0
    log_ratio: float = 0.0
    log_ratio_squared: float = 0.0
    log_ratio_max: float = 0.0
    num_measured: int = 0
    num_fresh: int = 0
    fresh_divergence: float = 0.0
    fresh_log_ratio_max: float = 0.0
    entropy: float | None = None
    reference_divergence: float | None = None
    value_loss: float | None = None

    def __add__(self, other: RatioSums) -> RatioSums:
        added: dict[str, Any] = {
            field.name: _both(field.name, getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
        }
        return RatioSums(**added)

    def to_numbers(self) -> list[float]:
        """All fields as numbers; one that may be missing as two, whether it is there and its value."""
        numbers: list[float] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is None:
                numbers.append(float(value is not None))
            numbers.append(0.0 if value is None else float(value))
        return numbers

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> RatioSums:
        """What `to_numbers` was called on."""
        values: dict[str, Any] = {}
        remaining = iter(numbers)
        for field in fields(cls):
            if field.default is None:
                is_there, number = next(remaining), next(remaining)
                values[field.name] = number if is_there else None
            else:
                is_count = isinstance(field.default, int)
                values[field.name] = int(next(remaining)) if is_count else next(remaining)
        return cls(**values)

    def summary(self) -> dict[str, float]:
        """Figures for the ledger; empty when no token was trained.

        `divergence` estimates KL(behaviour || current) with w - 1 - log w, which is never negative (the k3 estimator);
        `divergence_k1` and `divergence_k2` do with -log w and (log w)^2 / 2.
        `effective_sample_size` is (sum w)^2 / (N sum w^2), 1 on policy. `clip_fraction` counts the tokens whose
        gradient or weight the loss cut, by its own rule; `extreme_fraction` those that the mask left out. `entropy` (of
        the policy), `reference_divergence` (from the reference model, k3) and `value_loss` (of the value head) are
        there where they were computed.
        """
        if self.num_tokens == 0:
            return {}
        optional = {
            "entropy": self.entropy,
            "reference_divergence": self.reference_divergence,
            "value_loss": self.value_loss,
        }
        return {
            "ratio_mean": self.ratio / self.num_tokens,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.num_clipped / self.num_tokens,
            "extreme_fraction": self.num_extreme / self.num_tokens,
            "divergence": self.divergence / self.num_tokens,
            "divergence_k1": -self.log_ratio / self.num_tokens,
            "divergence_k2": self.log_ratio_squared / 2 / self.num_tokens,
            "effective_sample_size": self.ratio**2 / (self.num_tokens * self.ratio_squared),
        } | {name: value / self.num_tokens for name, value in optional.items() if value is not None}

    def mismatch(self) -> dict[str, float]:
        """How far the log-probabilities of inference engine and trainer are apart, and what staleness adds.

        Meant for a step's first minibatch, before any update. `mismatch_divergence` and `mismatch_log_ratio_max` are of
        the fresh tokens, `stale_divergence` is of the others, `stale_fraction` says how many these are. Each is left
        out where there is no such token.
        """
        figures = {}
        num_stale = self.num_measured - self.num_fresh
        if self.num_measured:
            figures["stale_fraction"] = num_stale / self.num_measured
        if self.num_fresh:
            figures["mismatch_divergence"] = self.fresh_divergence / self.num_fresh
            figures["mismatch_log_ratio_max"] = self.fresh_log_ratio_max
        if num_stale and self.num_measured == self.num_tokens:
            figures["stale_divergence"] = max(self.divergence - self.fresh_divergence, 0.0) / num_stale
        return figures


@torch.no_grad()
def ratio_sums(
    log_ratios_BR: Tensor,
    mask_BR: Tensor,
    clipped_BR: Tensor,
    *,
    extreme_BR: Tensor | None = None,
    lags_BR: Tensor | None = None,
    entropies_BR: Tensor | None = None,
    reference_divergences_BR: Tensor | None = None,
    value_losses_BR: Tensor | None = None,
) -> RatioSums:
    """Sums over the unmasked tokens of one micro-batch.

    Args:
        log_ratios_BR: log pi - mu.
        mask_BR: bool, True where a token is trained.
        clipped_BR: bool, where the loss cut a gradient or a weight.
        extreme_BR: bool, tokens left out for their ratio.
        lags_BR: versions between the one that generated a token and the one the step began with; negative: unknown.
        entropies_BR: of the policy's next-token distributions, where computed.
        reference_divergences_BR: estimates from the reference model, where computed.
        value_losses_BR: of the value head, where there is one.
    """
    log_ratios_N = log_ratios_BR.detach()[mask_BR]
    if log_ratios_N.numel() == 0:
        return RatioSums()
    ratios_N = log_ratios_N.exp()
    divergences_N = ratios_N - 1 - log_ratios_N
    lags_N = torch.full_like(ratios_N, -1) if lags_BR is None else lags_BR[mask_BR]
    fresh_N = (lags_N == 0).to(ratios_N.dtype)
    counts_N = {"num_clipped": clipped_BR[mask_BR], "num_measured": lags_N >= 0, "num_fresh": fresh_N}
    sums_N = {
        "ratio": ratios_N,
        "ratio_squared": ratios_N.square(),
        "divergence": divergences_N,
        "log_ratio": log_ratios_N,
        "log_ratio_squared": log_ratios_N.square(),
        "fresh_divergence": divergences_N * fresh_N,
    }
    if extreme_BR is not None:
        counts_N["num_extreme"] = extreme_BR[mask_BR]
    optional = {
        "entropy": entropies_BR,
        "reference_divergence": reference_divergences_BR,
        "value_loss": value_losses_BR,
    }
    sums_N |= {name: values_BR[mask_BR] for name, values_BR in optional.items() if values_BR is not None}
    maxima_N = {
        "ratio_max": ratios_N,
        "log_ratio_max": log_ratios_N.abs(),
        "fresh_log_ratio_max": log_ratios_N.abs() * fresh_N,
    }
    measured = _read(
        {name: values_N.to(ratios_N.dtype).sum() for name, values_N in (counts_N | sums_N).items()}
        | {name: values_N.max() for name, values_N in maxima_N.items()}
    )
    rounded = {name: round(measured[name]) for name in counts_N}
    not_negative = {name: max(measured[name], 0.0) for name in ("divergence", "fresh_divergence")}
    return RatioSums(num_tokens=log_ratios_N.numel(), **(measured | rounded | not_negative))


def step_statistics(sums: Sequence[RatioSums]) -> dict[str, float]:
    """Figures over all minibatches, and how far the first one, before any update, is from the behaviour policy.

    The latter, called `first_...`, say how off-policy the batch itself was: they are what alpha is controlled by. They
    are split into the mismatch of inference engine and trainer, and staleness, where versions are known.
    """
    if not sums:
        return {}
    total, first = sum(sums, start=RatioSums()), sums[0].summary()
    measured = {f"first_{name}": first[name] for name in _of_first_minibatch if name in first}
    return total.summary() | measured | {"first_log_ratio_max": sums[0].log_ratio_max} | sums[0].mismatch()


def finite(statistics: dict[str, float]) -> dict[str, float]:
    """The entries that are numbers a record may hold."""
    return {name: value for name, value in statistics.items() if math.isfinite(value)}


def _read(figures: dict[str, Tensor]) -> dict[str, Any]:
    """Scalars, read from the device at once."""
    return dict(zip(figures, torch.stack(list(figures.values())).tolist(), strict=True))


def _both(name: str, here: float | None, there: float | None) -> float | None:
    if here is None or there is None:
        return there if here is None else here
    return max(here, there) if name in _maxima else here + there
