"""Configuration of the trainer: algorithm, optimizer, engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rollog.kernel.errors import ConfigError
from rollog.settings.deepspeed import refused_settings
from rollog.settings.section import AMENDABLE, ENGINE, FIXED, PER_MACHINE, PLAN, WEIGHTS, Formerly, Section

if TYPE_CHECKING:
    from collections.abc import Mapping

AlgorithmType = Literal[
    "grpo",
    "policy_gradient",
    "ppo",
    "dr_grpo",
    "dapo",
    "rloo",
    "reinforce_plus_plus",
    "gspo",
    "decoupled_ppo",
    "tis",
    "cispo",
    "topr",
    "weighted_topr",
]
Baseline = Literal["group", "leave_one_out", "batch", "group_batch", "return", "gae"]
Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum"]
RatioLevel = Literal["token", "sequence", "sequence_mean"]
KlEstimator = Literal["k1", "k2", "k3"]
KlWeight = Literal["none", "ratio"]
Reproducible = Literal["machine", "avx2", "baseline"]

_symmetric_clip = {"clip_low": 0.2, "clip_high": 0.2}
_no_std = {"normalize_std": False}
_tapered = {"aggregation": "sequence_sum", "ratio_level": "sequence", "weight_high": 1.0}

_differences: Mapping[str, Mapping[str, object]] = {
    "grpo": {},
    "policy_gradient": {"advantage": "return", "aggregation": "sequence_sum", **_no_std},
    "ppo": {"advantage": "batch", **_symmetric_clip},
    "dr_grpo": {"aggregation": "sequence_sum", **_symmetric_clip, **_no_std},
    "dapo": {"overlong_share": 0.2},
    "rloo": {
        "advantage": "leave_one_out",
        "aggregation": "sequence_sum",
        "kl_estimator": "k1",
        "kl_in": "reward",
        **_no_std,
    },
    "reinforce_plus_plus": {
        "advantage": "batch",
        "kl_estimator": "k1",
        "kl_in": "reward",
        **_symmetric_clip,
    },
    "gspo": {
        "aggregation": "sequence_mean",
        "ratio_level": "sequence_mean",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
    },
    "decoupled_ppo": {"advantage": "batch", **_symmetric_clip},
    "tis": {"weight_high": 2.0, **_symmetric_clip},
    "cispo": {"weight_high": 5.0},
    "topr": _tapered,
    "weighted_topr": _tapered,
}
"""Where the defaults of a type are other than those of the fields, which are the ones of grpo."""


class AlgorithmConfig(Section):
    """Advantages and loss. The defaults are those of `grpo`; other types have their own: docs/algorithms.md."""

    type: Annotated[AlgorithmType, AMENDABLE, WEIGHTS] = "grpo"
    """Loss, advantage and aggregation together, by their published name; any other key of this section changes one of
    them."""
    advantage: Annotated[Baseline, AMENDABLE, WEIGHTS] = "group"
    """What a reward is compared with: the mean of its group (`group`), the mean of the group's other rewards
    (`leave_one_out`), the mean of the whole batch (`batch`), first the group's mean and then the batch (`group_batch`),
    nothing (`return`), or, token by token, the values of a learned value head (`gae`)."""
    normalize_std: Annotated[bool, AMENDABLE, WEIGHTS] = True
    """Whether advantages are divided by a standard deviation: the group's, with `batch`, `group_batch` and `gae` the
    batch's."""
    gae_lambda: Annotated[float, Field(ge=0, le=1), AMENDABLE, WEIGHTS] = 0.95
    """With `gae`: 1 compares what came of a token with the value before it, 0 only with the value after it."""
    discount: Annotated[float, Field(gt=0, le=1), AMENDABLE, WEIGHTS] = 1.0
    """With `gae`: how much less a reward counts one token earlier."""
    value_coefficient: Annotated[float, Field(gt=0), AMENDABLE, WEIGHTS] = 0.1
    """With `gae`: weight of the value head's loss beside the policy's."""
    value_clip: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 0.2
    """With `gae`: a value gains nothing by moving further than this within a training step; 0 is no such bound."""
    aggregation: Annotated[Aggregation, AMENDABLE, WEIGHTS] = "token_mean"
    """How per-token losses become one number: mean over all tokens; mean over samples of each sample's mean; or mean
    over samples of each sample's sum, divided by the constant `max_response_tokens`."""
    ratio_level: Annotated[RatioLevel, AMENDABLE, WEIGHTS] = "token"
    """Whose probability ratio is clipped or weighs: each token's, the whole response's (the product), or the geometric
    mean over the response (`sequence_mean`)."""
    clip_low: Annotated[float, Field(gt=0, lt=1), AMENDABLE, WEIGHTS] = 0.2
    """The ratio is clipped below at 1 - clip_low: to the behaviour policy, in `decoupled_ppo` and `tis` to the proximal
    one. Types that weigh log-probabilities do not clip."""
    clip_high: Annotated[float, Field(gt=0), AMENDABLE, WEIGHTS] = 0.28
    """... and above at 1 + clip_high."""
    dual_clip: Annotated[Annotated[float, Field(gt=1)] | None, AMENDABLE, WEIGHTS] = None
    """With a negative advantage A the objective is at least dual_clip * A, however large the ratio; left out, no such
    bound. The paper has 3."""
    weight_low: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 0.0
    """Smallest importance weight, in types that have one: the ratio to the behaviour policy in `policy_gradient`,
    `rloo`, `cispo` and, for negative advantages, `topr`; proximal to behaviour policy in `decoupled_ppo` and `tis`."""
    weight_high: Annotated[Annotated[float, Field(gt=0)] | None, AMENDABLE, WEIGHTS] = None
    """Largest importance weight; left out, no bound. Both at 1 take the correction out."""
    positive_weight: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 1.0
    """Factor of samples with an advantage of 0 or more, in `weighted_topr`."""
    negative_weight: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 1.0
    """Factor of samples with a negative advantage, in `weighted_topr`."""
    mask_ratio_low: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, AMENDABLE, WEIGHTS] = None
    """Tokens whose ratio to the behaviour policy is below this are not learnt from; left out, no bound."""
    mask_ratio_high: Annotated[Annotated[float, Field(gt=1)] | None, AMENDABLE, WEIGHTS] = None
    """... nor those whose ratio is above this."""
    mask_level: Annotated[Literal["token", "sequence"], AMENDABLE, WEIGHTS] = "token"
    """Whether each token is judged by its own ratio, or a whole response by the geometric mean of its ratios."""
    kl_coefficient: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 0.0
    """Weight of the divergence from the model that the run began with; above 0 a frozen copy of it is kept."""
    kl_estimator: Annotated[KlEstimator, AMENDABLE, WEIGHTS] = "k3"
    """Estimate of that divergence from one token: with d = log pi - log reference, d (`k1`), d^2 / 2 (`k2`), or
    exp(-d) - 1 + d (`k3`)."""
    kl_in: Annotated[Literal["loss", "reward"], AMENDABLE, WEIGHTS] = "loss"
    """Whether the divergence is added to the loss, or taken off the reward before advantages are computed; then it is
    that of the behaviour policy, which drew the response."""
    kl_weight: Annotated[KlWeight, AMENDABLE, WEIGHTS] = "none"
    """In the loss: whether each token's estimate is weighted by pi / mu (`ratio`), so that its gradient is that of the
    divergence although other weights drew the token; the weight has no bound."""
    entropy_coefficient: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 0.0
    """Weight of the mean entropy of the policy's next-token distributions, which is taken off the loss."""
    overlong_share: Annotated[float, Field(ge=0, le=1), AMENDABLE, WEIGHTS] = 0.0
    """Over-long shaping: the last share of `max_response_tokens` in which the reward falls linearly; 0 is none."""
    overlong_penalty: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 1.0
    """What a response of `max_response_tokens` loses of its reward by it."""
    mask_truncated: Annotated[bool, AMENDABLE, WEIGHTS] = False
    """Whether responses that were cut off for their length are not learnt from: their rewards still count where others
    are compared with them, their tokens nowhere in the loss, nor in its denominators."""
    max_response_tokens: Annotated[Annotated[int, Field(ge=1)] | None, AMENDABLE, WEIGHTS] = None
    """Tokens of the longest response, for `sequence_sum` and over-long shaping; left out, `sampling.max_tokens`, as
    many as all turns of an episode may take, or `agent.max_tokens`."""

    @model_validator(mode="before")
    @classmethod
    def _filled_by_type(cls, values: Any) -> Any:
        """What is left out is as the type has it."""
        if not isinstance(values, dict):
            return values
        return {**_differences.get(str(values.get("type", "grpo")), {}), **values}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.weight_high is not None and self.weight_low > self.weight_high:
            raise ValueError(
                f"algorithm.weight_low = {self.weight_low:g} is above algorithm.weight_high = {self.weight_high:g}; "
                "lower the first or raise the second"
            )
        if self.advantage == "return" and self.normalize_std:
            raise ValueError(
                "algorithm.advantage = 'return' is divided by nothing: set algorithm.normalize_std = false, or "
                "algorithm.advantage = 'batch'"
            )
        return self

    @property
    def response_budget(self) -> int:
        """Tokens of the longest response. Raises ConfigError where it is needed and not set."""
        if self.max_response_tokens is None:
            raise ConfigError(
                f"algorithm.max_response_tokens is not set, and algorithm.type = {self.type!r} with aggregation "
                f"{self.aggregation!r} needs it; set it to sampling.max_tokens"
            )
        return self.max_response_tokens

    @property
    def needs_proximal(self) -> bool:
        """Whether the loss needs log-probabilities of the policy as it was before the training step."""
        return self.type in {"decoupled_ppo", "tis"}

    @property
    def needs_values(self) -> bool:
        """Whether the policy has a value head, which advantages are computed with."""
        return self.advantage == "gae"

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities of the model that the run began with are needed."""
        return self.kl_coefficient > 0

    def with_budget(self, num_tokens: int) -> AlgorithmConfig:
        """The same with `max_response_tokens` filled in where it is left out."""
        if self.max_response_tokens is not None:
            return self
        return self.model_copy(update={"max_response_tokens": num_tokens})


class OptimizerConfig(Section):
    """AdamW and its learning-rate schedule, counted in optimizer steps."""

    learning_rate: Annotated[float, Field(gt=0), AMENDABLE, WEIGHTS] = 1e-6
    """Highest learning rate."""
    final_fraction: Annotated[float, Field(ge=0, le=1), AMENDABLE, WEIGHTS] = 0.1
    """The learning rate falls linearly to this fraction of the highest at the run's last step."""
    warmup_steps: Annotated[int, Field(ge=0), AMENDABLE, WEIGHTS] = 0
    """Optimizer steps of linear warm-up."""
    betas: Annotated[tuple[float, float], AMENDABLE, WEIGHTS] = (0.9, 0.95)
    """Decay of the first and second moment."""
    epsilon: Annotated[float, Field(gt=0), AMENDABLE, WEIGHTS] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0), AMENDABLE, WEIGHTS] = 0.0
    """Decoupled weight decay."""
    max_gradient_norm: Annotated[float, Field(gt=0), AMENDABLE, WEIGHTS] = 1.0
    """Gradients are scaled down to this norm."""


class TrainerConfig(Section):
    """The training engine."""

    engine: Annotated[Literal["deepspeed", "torch"], FIXED, WEIGHTS | ENGINE] = "deepspeed"
    """Training engine: DeepSpeed, or PyTorch alone (one process)."""
    num_ranks: Annotated[int, Field(ge=1), FIXED] = 1
    """Processes that train together, one per device, with DeepSpeed. A trainer that no launcher started starts the
    others itself, on its machine; under torchrun or deepspeed the launcher's number counts instead. A run keeps the
    number it began with."""
    rank_timeout_seconds: Annotated[float, Field(gt=0), PER_MACHINE] = 300.0
    """Longest time that ranks wait for each other inside a step; then the trainer ends. A rank that dies is noticed
    at once."""
    zero_stage: Annotated[int, Field(ge=0, le=3), FIXED, WEIGHTS | ENGINE] = 1
    """DeepSpeed ZeRO stage."""
    offload_optimizer: Annotated[bool, FIXED, WEIGHTS | ENGINE] = False
    """Whether the optimizer's state and its float32 weights are kept in the machine's memory and its processors take
    the optimizer steps: 12 bytes a parameter less on the GPU, slower steps. With DeepSpeed at ZeRO stages 1 to 3. A run
    keeps what it began with."""
    offload_parameters: Annotated[bool, FIXED, WEIGHTS | ENGINE] = False
    """Whether the weights are kept in the machine's memory, too, and are on the GPU only while a layer computes with
    them. With DeepSpeed at ZeRO stage 3. A run keeps what it began with."""
    deepspeed: Annotated[dict[str, Any], FIXED, WEIGHTS | ENGINE] = Field(default_factory=dict)
    """Further settings of DeepSpeed, as in its configuration file, such as `[trainer.deepspeed.zero_optimization]` with
    `reduce_bucket_size`; those that follow from other keys are refused. A run keeps what it began with."""
    num_epochs: Annotated[int, Field(ge=1), AMENDABLE, WEIGHTS | PLAN] = 1
    """Passes over the batch per training step, each with its groups dealt anew."""
    num_minibatches: Annotated[int, Field(ge=1), AMENDABLE, WEIGHTS | PLAN] = 4
    """Optimizer steps per pass."""
    micro_batch_tokens: Annotated[int, Field(ge=1), AMENDABLE, WEIGHTS | PLAN] = 16384
    """Most tokens (padding included) in one forward pass."""
    packing: Annotated[bool, FIXED, WEIGHTS | PLAN | ENGINE] = False
    """Whether several samples share a row of a forward pass, each attending to itself alone, instead of being padded to
    the longest. Faster where lengths differ; for models whose attention heeds restarting positions, which is
    tested when training begins. A run keeps what it began with."""
    packed_attention: Annotated[Literal["masked", "varlen"], FIXED, WEIGHTS | ENGINE, Formerly("masked")] = (
        "varlen"
    )
    """How samples of one row are kept apart: `varlen` gives a GPU's kernel for sequences of several lengths the places
    where they begin (PyTorch's `torch.nn.attention.varlen`, bfloat16), `masked` a mask of positions x positions. Where
    there is no such kernel, or a model needs more than it computes, both are `masked`. A run keeps what it began with;
    one from before there was this key has `masked`."""
    logprob_chunk_tokens: Annotated[int, Field(ge=0), FIXED, WEIGHTS | ENGINE, Formerly(0)] = 1024
    """Most tokens whose logits are in memory at once while log-probabilities are computed: the forward pass takes them
    chunk by chunk, the backward pass computes them again. 0 is all of a micro-batch at once, which takes about five
    times tokens x vocabulary x 4 bytes. A run keeps what it began with; one from before there was this key has 0."""
    output_layer_dtype: Annotated[Literal["model", "float32"], FIXED, WEIGHTS | ENGINE] = "model"
    """What the output layer computes logits in: the type of the model, or float32 also where that is bfloat16. A run
    keeps what it began with."""
    gradient_dtype: Annotated[Literal["model", "float32"], FIXED, WEIGHTS | ENGINE, Formerly("model")] = (
        "float32"
    )
    """What gradients of micro-batches and ranks are added up in: float32 also where the model is bfloat16, or the type
    of the model, in which small ones are rounded away: 2 instead of 4 bytes a parameter. A run keeps what it began
    with; one from before there was this key has `model`."""
    num_threads: Annotated[Annotated[int, Field(ge=1)] | None, PER_MACHINE] = None
    """CPU threads of the trainer. Left out, half of the processors of the machine that creates the run: the number
    stands in the manifest, because the last bits of the weights depend on it."""
    reproducible: Annotated[Reproducible, FIXED, WEIGHTS | ENGINE] = "machine"
    """On which processors training on a CPU gives the same weights, bit for bit. `machine`: those of one vendor and
    family, with the fastest code of each library. `avx2`, `baseline`: all that have AVX2 and FMA, or all of x86-64;
    PyTorch and oneDNN then use no wider instructions, and MKL its code for all processors, which takes longer. A run
    keeps what it began with."""
    activation_checkpointing: Annotated[bool, PER_MACHINE] = False
    """Whether activations inside a layer are computed again in the backward pass instead of being kept: less memory,
    about a third more computation, the same weights."""
    lora_rank: Annotated[int, Field(ge=0), FIXED, WEIGHTS | ENGINE] = 0
    """Rank of low-rank adapters that are trained instead of the model's weights, which need no optimizer state then; 0
    is none. A run keeps what it began with."""
    lora_published: Annotated[Literal["adapters", "merged"], FIXED, WEIGHTS | ENGINE, Formerly("merged")] = (
        "adapters"
    )
    """What a version of a run with adapters holds: the adapters alone, beside version 0, or whole weights with the
    adapters merged in, of which bfloat16 loses most while they are small. A run keeps what it began with; one from
    before there was this key has `merged`."""
    lora_alpha: Annotated[int, Field(ge=1), FIXED, WEIGHTS | ENGINE] = 16
    """What adapters add counts `lora_alpha / lora_rank` times."""
    lora_targets: Annotated[tuple[str, ...], FIXED, WEIGHTS | ENGINE] = ()
    """Layers that get an adapter, by the last part of their names (`["q_proj", "v_proj"]`); left out, all linear layers
    but the output layer."""
    publish_beside_training: Annotated[bool, PER_MACHINE] = True
    """Whether the next step is trained while a step's weights are written and committed, and its checkpoint, if one is
    due. Either way weights are written from a copy in this machine's memory, steps are committed in their order, and
    the weights are the same. A checkpoint takes memory for a copy once, if half of what is free holds it."""
    checkpoint_every_steps: Annotated[int, Field(ge=1), AMENDABLE] = 10
    """Training steps between checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=1), AMENDABLE] = 2
    """Newest complete checkpoints to keep."""
    keep_newest_weights: Annotated[int, Field(ge=0), AMENDABLE] = 0
    """Newest published versions to keep, at least 2; 0 keeps all. Kept as well are as many before them as samples may
    lag behind, version 0, those of complete checkpoints, the newest that is evaluated, and what one of these is
    stored as changes of. The others are named on the log, then their files are deleted."""
    keep_every_weights: Annotated[int, Field(ge=0), AMENDABLE] = 0
    """Every so many-th version is kept as well; 0: none for this reason."""
    weights_grace_seconds: Annotated[float, Field(ge=0), AMENDABLE] = 600.0
    """A version stays at least this long after the next one was published, for workers that read it slowly. Counted
    anew when the trainer is started again."""
    allow_rebase: Annotated[bool, AMENDABLE] = False
    """Whether a trainer that cannot redo the newest version bit for bit goes on from the weights that it has, under a
    new version and a `rebase` record, instead of stopping. The new version counts towards `run.num_steps`."""
    verdicts_interval_seconds: Annotated[float, Field(ge=0), AMENDABLE] = 0.05
    """Shortest time between two `verdicts` records."""
    transaction_timeout_seconds: Annotated[float, Field(gt=0), FIXED] = 15.0
    """After this the broker aborts an open transaction."""

    @property
    def published_rank(self) -> int:
        """Rank of the adapters that versions hold apart, 0 where they hold whole weights."""
        return self.lora_rank if self.lora_published == "adapters" else 0

    @model_validator(mode="after")
    def _check_ranks_and_keeping(self) -> Self:
        if self.keep_newest_weights == 1:
            raise ValueError(
                "keep_newest_weights = 1: workers may be at the version before the newest; set 2 or more, or 0 for all"
            )
        if self.num_ranks > 1 and self.engine != "deepspeed":
            raise ValueError(
                f'num_ranks = {self.num_ranks} needs engine = "deepspeed": "{self.engine}" is one process'
            )
        return self

    @model_validator(mode="after")
    def _check_deepspeed(self) -> Self:
        if self.engine != "deepspeed" and (
            self.offload_optimizer or self.offload_parameters or self.deepspeed
        ):
            raise ValueError(
                f"offload_optimizer, offload_parameters and [trainer.deepspeed] are settings of DeepSpeed: leave them "
                f'out with engine = "{self.engine}", or set engine = "deepspeed"'
            )
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError(
                "offload_optimizer = true needs zero_stage = 1, 2 or 3: stage 0 shares nothing out"
            )
        if self.offload_parameters and self.zero_stage != 3:  # noqa: PLR2004 - ZeRO's number
            raise ValueError(
                f"offload_parameters = true needs zero_stage = 3: at stage {self.zero_stage} every rank computes with "
                "whole weights"
            )
        if refused := "; ".join(refused_settings(self.deepspeed)):
            raise ValueError(refused)
        return self
