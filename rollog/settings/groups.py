"""Settings of what a batch is made of: groups, and how old their rollouts may be."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, ValidationError, WrapValidator, model_validator

from rollog.settings.section import AMENDABLE, FIXED, Section

if TYPE_CHECKING:
    from collections.abc import Callable

_Share = Annotated[float, Field(ge=0, le=1)]
_NumTokens = Annotated[float, Field(ge=0)]
_untrained_batches = 20
_least_untrained = 256
"""A good policy answers most prompts rightly in every replica: of small batches many in a row may teach nothing."""


class GroupConfig(Section):
    """What a batch is made of."""

    groups_per_batch: Annotated[int, Field(ge=1), FIXED] = 32
    """B: groups trained in one step."""
    group_size: Annotated[int, Field(ge=1), FIXED] = 8
    """G: rollouts of one prompt that share a baseline."""
    redundant_replicas: Annotated[int, Field(ge=0), FIXED] = 0
    """R: extra replicas per group; the first G fresh ones count."""
    redundant_groups: Annotated[int, Field(ge=0), FIXED] = 0
    """Extra groups in flight beyond what a batch needs."""
    filter_zero_signal: Annotated[bool, FIXED] = True
    """Whether groups whose rewards are all equal are filtered and replaced by a fresh prompt."""
    reward_mean_bounds: Annotated[tuple[float, float] | None, FIXED] = None
    """Groups whose mean reward lies outside are filtered; left out, no bounds."""
    pass_reward: Annotated[float, FIXED] = 1.0
    """Reward from which on a response counts as passed."""
    pass_rate_bounds: Annotated[tuple[_Share, _Share] | None, FIXED] = None
    """Groups of whose responses a share outside passes are filtered, as too hard or too easy; the bounds themselves are
    inside; left out, no bounds."""
    response_tokens_mean_bounds: Annotated[tuple[_NumTokens, _NumTokens] | None, FIXED] = None
    """Groups whose mean response length lies outside are filtered, as too short or too long, in tokens; the bounds
    themselves are inside; of an episode what the policy sampled counts, not the environment's text; left out, no
    bounds."""
    max_truncated_share: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, FIXED] = None
    """Groups of whose responses a larger share was cut off by `sampling.max_tokens` or the end of the context are
    filtered; 0 filters a group for a single one; left out, none is."""
    batch_order: Annotated[Literal["oldest", "freshest"], FIXED] = "oldest"
    """Which complete groups go into a batch first, behind protected ones: those of the largest lag, so that little is
    wasted, or those of the smallest, so that training stays nearer to the policy and more turns stale."""
    timeout_seconds: Annotated[Annotated[float, Field(gt=0)] | None, FIXED] = None
    """How long a group may stay incomplete after the trainer has read its first sample; then it is closed as
    incomplete. For hangs only: rollouts have `dispatch.task_timeout_seconds`. Left out, groups have all the time."""
    max_attempts: Annotated[int, Field(ge=1), FIXED] = 3
    """Failed or dead attempts after which a replica is given up."""
    max_lost: Annotated[int, Field(ge=1), FIXED] = 10
    """Lost attempts after which a replica is given up."""
    other_writers: Annotated[tuple[str, ...], FIXED] = ()
    """Ids of writers, other than the run's workers, whose samples count for groups that were issued. Verdicts and the
    audit show what of them was trained. Every other sample whose task, grant, seed or worker the log does not know is
    dead."""
    max_untrained_in_a_row: Annotated[Annotated[int, Field(ge=1)] | None, FIXED] = None
    """Groups closed one after the other, none of them trained, after which the run is given up: nothing can be learnt
    from rewards that never vary, or that cannot be computed. Left out, those of 20 batches, at least 256. Where no
    rollout of a run has come to a reward, it is given up after its first batch, or 8 groups if these are more."""

    @property
    def most_untrained_in_a_row(self) -> int:
        """`max_untrained_in_a_row`, or what it is where it is left out."""
        if self.max_untrained_in_a_row is not None:
            return self.max_untrained_in_a_row
        return max(_least_untrained, _untrained_batches * self.groups_per_batch)

    @property
    def num_replicas(self) -> int:
        """Replicas per group, the redundant ones included."""
        return self.group_size + self.redundant_replicas

    @model_validator(mode="after")
    def _filters_let_groups_pass(self) -> Self:
        names = ("reward_mean_bounds", "pass_rate_bounds", "response_tokens_mean_bounds")
        for name, bounds in ((name, getattr(self, name)) for name in names):
            if bounds is not None and bounds[0] >= bounds[1]:
                raise ValueError(f"groups.{name} = {list(bounds)}: the first bound must be below the second")
        if self.pass_rate_bounds is not None:
            low, high = self.pass_rate_bounds
            if not any(low <= num / self.group_size <= high for num in range(self.group_size + 1)):
                raise ValueError(
                    f"groups.pass_rate_bounds = {[low, high]} lets no group of groups.group_size = "
                    f"{self.group_size} pass: its pass rate is a multiple of 1/{self.group_size}; widen the bounds"
                )
        return self


class StaleAction(StrEnum):
    """What happens to the place of a stale rollout."""

    REGENERATE = "regenerate"
    DROP = "drop"


AlphaSchedule = tuple[tuple[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=0)]], ...]
AlphaSetting = Annotated[float, Field(ge=0)] | Literal["auto"] | AlphaSchedule


def _one_of_the_alphas(value: object, handler: Callable[[object], AlphaSetting]) -> AlphaSetting:
    """One message for all forms, and the order of a schedule. Raises ValueError."""
    if isinstance(value, list):
        value = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in value)
    try:
        alpha = handler(value)
    except ValidationError as error:
        raise ValueError(
            'give a finite number of 0 or more, "auto", or a schedule [[0, alpha], [version, alpha], ...]'
        ) from error
    if isinstance(alpha, tuple):
        versions = [version for version, _ in alpha]
        if versions[:1] != [0] or any(later <= earlier for earlier, later in pairwise(versions)):
            raise ValueError(
                f"the versions of a schedule begin with 0 and rise, these are {versions}; "
                "give [[0, alpha], [version, alpha], ...]"
            )
    return alpha


class FreshnessConfig(Section):
    """How old a rollout may be when it is trained."""

    alpha: Annotated[AlphaSetting, WrapValidator(_one_of_the_alphas), AMENDABLE] = 1.0
    """Asynchronous ratio: bound on the lag of everything trained; 0 is synchronous; may be fractional. A schedule
    `[[0, 0.0], [10, 2.0]]` gives the value from each policy version on: here the first 10 steps are synchronous.
    `"auto"` starts at `auto_start` and is changed by at most `auto_step` after each step, from what the step measured.
    """
    barrier_every_steps: Annotated[Annotated[int, Field(ge=2)] | None, AMENDABLE] = None
    """Every n-th step is taken with alpha 0: all begin anew with its version; left out, no barriers."""
    auto_start: Annotated[float, Field(ge=0), AMENDABLE] = 1.0
    """First value of `alpha = "auto"`."""
    auto_min: Annotated[float, Field(ge=0), AMENDABLE] = 0.0
    """Smallest value of `alpha = "auto"`."""
    auto_max: Annotated[float, Field(ge=0), AMENDABLE] = 4.0
    """Largest value of `alpha = "auto"`."""
    auto_step: Annotated[float, Field(gt=0), AMENDABLE] = 0.25
    """By how much `alpha = "auto"` is raised or lowered at once; below 1 / `groups_per_batch` it is without effect."""
    auto_wait_share: Annotated[float, Field(ge=0, le=1), AMENDABLE] = 0.1
    """`alpha = "auto"` is raised after a step that spent this share of its time, or more, without a batch."""
    auto_min_effective_sample_size: Annotated[float, Field(gt=0, lt=1), AMENDABLE] = 0.9
    """`alpha = "auto"` is lowered when the effective sample size of the importance ratios, as a share of the trained
    tokens (1 on policy), was below this."""
    auto_max_divergence: Annotated[float, Field(gt=0), AMENDABLE] = 0.05
    """`alpha = "auto"` is lowered when KL(behaviour || current), in nats per token, was above this."""
    auto_headroom: Annotated[float, Field(ge=0, le=1), AMENDABLE] = 0.5
    """`alpha = "auto"` is raised only while the last two steps were off policy by at most this share of what the two
    targets allow."""
    action: Annotated[StaleAction, FIXED] = StaleAction.REGENERATE
    """Whether a stale rollout is made again or its place is dropped."""
    protect_after: Annotated[int, Field(ge=1), FIXED] = 1
    """A group is protected from its n-th stale sample on."""
    patience_seconds: Annotated[float, Field(ge=0), FIXED] = 300.0
    """How long one protected replica may hold up training."""

    @model_validator(mode="after")
    def _starts_within_bounds(self) -> Self:
        if not self.auto_min <= self.auto_start <= self.auto_max:
            raise ValueError(
                f"freshness.auto_start = {self.auto_start:g} is not between freshness.auto_min = "
                f"{self.auto_min:g} and freshness.auto_max = {self.auto_max:g}; move one of them"
            )
        return self
