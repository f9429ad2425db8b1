"""Samples of several sequences, a small policy in float64, and what a step must do with them, worked out slowly.

`slow_loss` is the independent reference: one token after the other, from prefixes as lists of ids, with sums as
SESSIONS counts them. It shares the policy's parameters with the trainer, and no code.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from rollog.settings.training import OptimizerConfig, TrainerConfig
from schemas import (
    FinishReason,
    Fork,
    Kind,
    Sample,
    Segment,
    Status,
    TurnSpan,
    float32_array,
    int32_array,
    sample_id,
    uint8_array,
)
from schemas.sample_checks import check_sample
from support.step_engine import DescentEngine, ThreadsMeeting
from trainer.engines.multi_rank.messages import of_rank
from trainer.step.batch import plan_groups, training_batch
from trainer.step.ports import StepSettings
from trainer.step.training_step import train_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollog.settings.training import AlgorithmConfig
    from trainer.step.ports import StepResult

    Groups = Sequence[Sequence[Sample]]

vocabulary = 11
width = 6
budget = 24


class RecurrentPolicy(nn.Module):
    """A causal policy in float64: what a token's state is depends on every id before it, and on nothing else."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.5 * torch.randn(*shape, generator=draw, dtype=torch.float64))

        self.embedding = parameter(vocabulary, width)
        self.transition = parameter(width, width)
        self.output = parameter(width, vocabulary)
        self.value = parameter(width)

    def forward(
        self,
        ids_ST: Tensor,
        source_N: Tensor,
        target_N: Tensor,
        response_N: Tensor,
        mask_BR: Tensor,
        *,
        position_ids_ST: Tensor | None,
        with_entropy: bool,
        with_values: bool,
    ) -> tuple[Tensor, None, Tensor | None]:
        assert not with_entropy
        state_SH, states = torch.zeros(len(ids_ST), width, dtype=torch.float64), []
        for column in range(ids_ST.shape[1]):
            if position_ids_ST is not None:
                state_SH = torch.where((position_ids_ST[:, column] == 0)[:, None], 0.0, state_SH)
            state_SH = torch.tanh(state_SH @ self.transition + self.embedding[ids_ST[:, column]])
            states.append(state_SH)
        states_NH = torch.stack(states, dim=1).flatten(0, 1)[source_N]
        logprobs_N = torch.log_softmax(states_NH @ self.output, dim=1)[torch.arange(len(target_N)), target_N]
        values_BR = _placed(states_NH @ self.value, response_N, mask_BR) if with_values else None
        return _placed(logprobs_N, response_N, mask_BR), None, values_BR

    def state_after(self, ids: Sequence[int]) -> Tensor:
        """The state behind a prefix, by its own loop."""
        state = torch.zeros(width, dtype=torch.float64)
        for token in ids:
            state = torch.tanh(state @ self.transition + self.embedding[token])
        return state

    def logprob(self, prefix: Sequence[int], token: int) -> Tensor:
        scores = self.state_after(prefix) @ self.output
        return scores[token] - torch.logsumexp(scores, dim=0)


def _placed(values_N: Tensor, response_N: Tensor, mask_BR: Tensor) -> Tensor:
    flat = torch.zeros(mask_BR.numel(), dtype=torch.float64).scatter(0, response_N, values_N)
    return flat.view(mask_BR.shape)


@dataclass(slots=True)
class SummingEngine(DescentEngine):
    """Adds up the gradients of all ranks before it goes down them."""

    def apply_gradients(self, optimizer: OptimizerConfig, learning_rate: float) -> float:
        for parameter in self.policy.parameters():
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            of_ranks = self.gather(own.detach().numpy().ravel())
            parameter.grad = torch.from_numpy(np.sum(of_ranks, axis=0)).view_as(parameter)
        return DescentEngine.apply_gradients(self, optimizer, learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What one training step did: its result, and all parameters after it in one row."""

    result: StepResult
    parameters: Tensor


def trained(
    groups: Groups,
    algorithm: AlgorithmConfig,
    *,
    world_size: int = 1,
    packing: bool = False,
    num_minibatches: int = 1,
) -> Trained:
    """One step of plain gradient descent, with learning rate 1, on the groups; ranks are threads."""
    trainer = TrainerConfig(packing=packing, num_minibatches=num_minibatches, micro_batch_tokens=64)
    plan = plan_groups(groups, trainer, world_size=world_size, seed=3)
    batch = training_batch(groups, plan, algorithm, 1.0, version=4)
    meeting = ThreadsMeeting(world_size)
    settings = StepSettings(
        algorithm=algorithm,
        optimizer=OptimizerConfig(learning_rate=1.0, warmup_steps=0, max_gradient_norm=1e9),
        num_optimizer_steps=1000,
    )

    def trained_by(rank: int) -> Trained:
        engine = SummingEngine(
            RecurrentPolicy(), RecurrentPolicy(7), rank=rank, packing=packing, exchange=meeting.exchange
        )
        result = train_step(of_rank(batch, rank), engine, settings, steps_taken=0)
        return Trained(result=result, parameters=nn.utils.parameters_to_vector(engine.policy.parameters()))

    with ThreadPoolExecutor(world_size) as pool:
        ranks = list(pool.map(trained_by, range(world_size)))
    assert all(torch.equal(rank.parameters, ranks[0].parameters) for rank in ranks)
    return ranks[0]


def an_episode(group: int, replica: int, *, turn_rewards: bool = False, seed: int = 0) -> Sample:
    """A sample of one sequence: two to five turns of one to three tokens, with up to two ids of context between."""
    draw = np.random.default_rng([group, replica, seed])
    spans: list[tuple[int, int]] = []
    end = 0
    for _ in range(int(draw.integers(2, 6))):
        start = end + (int(draw.integers(0, 3)) if spans else 0)
        end = start + int(draw.integers(1, 4))
        spans.append((start, end))
    turns = tuple(a_turn(number, 0, *span) for number, span in enumerate(spans))
    mask = np.zeros(end, dtype="u1")
    for span in spans:
        mask[slice(*span)] = 1
    rewards = tuple(draw.normal(size=len(turns)).tolist()) if turn_rewards else ()
    return Sample(
        sample_id=sample_id(group, replica, 0),
        task_id=f"1.{group * 100 + replica}",
        kind=Kind.TRAINING,
        status=Status.FINISHED,
        epoch=1,
        grant_id="1.1",
        worker_id="worker-1",
        group_id=group,
        replica=replica,
        attempt=0,
        prompt_id=str(group),
        prompt_token_ids=int32_array(draw.integers(0, vocabulary, int(draw.integers(1, 5)))),
        token_ids=int32_array(draw.integers(0, vocabulary, end)),
        behaviour_logprobs=float32_array(np.where(mask, -2.4 + 0.3 * draw.standard_normal(end), 0.0)),
        loss_mask=uint8_array(mask),
        segments=(Segment(version=3, weights_digest="ab", start=0, end=end),),
        reward=float(sum(rewards)) if turn_rewards else float(draw.normal()),
        turn_rewards=rewards,
        finish_reason=FinishReason.STOP,
        turns=turns,
    )


def a_turn(number: int, sequence: int, start: int, end: int, *, untrained: str | None = None) -> TurnSpan:
    return TurnSpan(
        number=number,
        sequence=sequence,
        start=start,
        end=end,
        finish_reason=FinishReason.STOP,
        untrained=untrained,
    )


def forked(sample: Sample, draw: np.random.Generator) -> Sample:
    """The same turns after the same ids, but shared out at random among up to four sequences.

    Ids of turns that another sequence has are context, or shared.
    """
    assert not sample.forks
    of_turns = _renumbered(draw.integers(0, 4, len(sample.turns)).tolist())
    ids = np.concatenate((sample.prompt_token_ids, sample.token_ids))
    num_prompt, turns, rows = len(sample.prompt_token_ids), [], []
    ends: list[int] = []
    for sequence in range(max(of_turns) + 1):
        own = [turn for turn, at in zip(sample.turns, of_turns, strict=True) if at == sequence]
        start, end = own[0].start, own[-1].end
        turns += [
            replace(turn, sequence=sequence, start=turn.start - start, end=turn.end - start) for turn in own
        ]
        mask = np.zeros(end - start, dtype="u1")
        for turn in own:
            mask[turn.start - start : turn.end - start] = 1
        parent = int(draw.integers(0, len(ends))) if ends else 0
        shared = int(draw.integers(0, min(ends[parent], num_prompt + start) + 1)) if ends else 0
        rows.append(
            Fork(
                parent=parent,
                shared=shared,
                context=int32_array(ids[shared : num_prompt + start]),
                token_ids=sample.token_ids[start:end],
                behaviour_logprobs=float32_array(np.where(mask, sample.behaviour_logprobs[start:end], 0.0)),
                loss_mask=uint8_array(mask),
                segments=(Segment(version=3, weights_digest="ab", start=0, end=end - start),),
                reason="branched",
            )
        )
        ends.append(num_prompt + end)
    return with_sequences(sample, rows, turns)


def with_sequences(sample: Sample, rows: Sequence[Fork], turns: Sequence[TurnSpan]) -> Sample:
    """The sample with these sequences, the first as its own."""
    own = rows[0]
    made = replace(
        sample,
        prompt_token_ids=own.context,
        token_ids=own.token_ids,
        behaviour_logprobs=own.behaviour_logprobs,
        loss_mask=own.loss_mask,
        segments=own.segments,
        forks=tuple(rows[1:]),
        turns=tuple(sorted(turns, key=lambda turn: turn.number)),
    )
    check_sample(made)
    return made


def _renumbered(sequences: Sequence[int]) -> list[int]:
    """Sequences are numbered in the order of their first turns."""
    order = list(dict.fromkeys(sequences))
    return [order.index(sequence) for sequence in sequences]


def a_session(group: int, replica: int, *, turn_rewards: bool = False, seed: int = 0) -> Sample:
    """A sample whose forks go on after ids of their own, with now and then a turn that is not trained."""
    draw = np.random.default_rng([seed, group, replica, 1])
    sample = forked(an_episode(group, replica, turn_rewards=turn_rewards, seed=seed), draw)
    forks = [
        replace(fork, context=int32_array(draw.integers(0, vocabulary, len(fork.context) + 1)))
        for fork in sample.forks
    ]
    forks = [replace(fork, parent=0, shared=min(fork.shared, len(sample.prompt_token_ids))) for fork in forks]
    left_out = int(draw.integers(0, 2 * len(sample.turns)))
    turns, masks = [], [np.array(row.loss_mask) for row in sample.rows()]
    for turn in sample.turns:
        is_out = turn.number == left_out
        turns.append(replace(turn, untrained="superseded" if is_out else None))
        if is_out:
            masks[turn.sequence][turn.start : turn.end] = 0
    made = replace(
        sample,
        turns=tuple(turns),
        loss_mask=uint8_array(masks[0]),
        forks=tuple(
            replace(fork, loss_mask=uint8_array(mask)) for fork, mask in zip(forks, masks[1:], strict=True)
        ),
    )
    check_sample(made)
    return made


@dataclass(slots=True, kw_only=True)
class _Token:
    """One trained token: what stands before it, and what the record says of it."""

    prefix: list[int]
    token: int
    behaviour: float
    turn: int
    sequence: int
    advantage: float = 0.0
    expected: float = 0.0


def slow_loss(groups: Groups, algorithm: AlgorithmConfig, policy: RecurrentPolicy) -> Tensor:
    """The loss of all groups as one minibatch: a clipped surrogate of token ratios, and half a squared value error."""
    tokens = {sample.sample_id: _tokens(sample) for group in groups for sample in group}
    for group in groups:
        _give_advantages(group, tokens, algorithm)
    if algorithm.advantage == "gae":
        for group in groups:
            for sample in group:
                _give_estimates(sample, tokens[sample.sample_id], algorithm, policy)
    losses = {name: [_loss(each, algorithm, policy) for each in of_one] for name, of_one in tokens.items()}
    kept = [of_one for of_one in losses.values() if of_one]
    flat = [loss for of_one in kept for loss in of_one]
    match algorithm.aggregation:
        case "token_mean":
            return torch.stack(flat).mean()
        case "sequence_mean":
            return torch.stack([torch.stack(of_one).mean() for of_one in kept]).mean()
        case "sequence_sum":
            return torch.stack(flat).sum() / (len(kept) * budget)


def _tokens(sample: Sample) -> list[_Token]:
    """Walks every sequence once: ids shared with a parent are copied out of it by hand."""
    whole: list[list[int]] = []
    found = []
    sequences: list[Sample | Fork] = [sample, *sample.forks]
    for number, sequence in enumerate(sequences):
        if isinstance(sequence, Fork):
            ids = whole[sequence.parent][: sequence.shared] + sequence.context.tolist()
        else:
            ids = sequence.prompt_token_ids.tolist()
        turn_at = {
            place: turn.number
            for turn in sample.turns
            if turn.sequence == number and turn.untrained is None
            for place in range(turn.start, turn.end)
        }
        for place, token in enumerate(sequence.token_ids.tolist()):
            if place in turn_at:
                found.append(
                    _Token(
                        prefix=list(ids),
                        token=token,
                        behaviour=float(sequence.behaviour_logprobs[place]),
                        turn=turn_at[place],
                        sequence=number,
                    )
                )
            ids.append(token)
        whole.append(ids)
    return found


def _give_advantages(
    group: Sequence[Sample], tokens: Mapping[str, list[_Token]], algorithm: AlgorithmConfig
) -> None:
    """Leave-one-out over the rewards of all turns of the group, or of all samples; then sums to the last turn."""
    rewards = []
    for sample in group:
        own = list(sample.turn_rewards) or [sample.reward or 0.0]
        if algorithm.kl_coefficient and algorithm.kl_in == "reward":
            reference = RecurrentPolicy(7)
            divergence = sum(
                each.behaviour - reference.logprob(each.prefix, each.token).item()
                for each in tokens[sample.sample_id]
            )
            own[-1] -= algorithm.kl_coefficient * divergence
        rewards.append(own)
    pool = [reward for own in rewards for reward in own]
    for sample, own in zip(group, rewards, strict=True):
        others = [(sum(pool) - reward) / (len(pool) - 1) for reward in own]
        centred = [reward - other for reward, other in zip(own, others, strict=True)]
        for each in tokens[sample.sample_id]:
            first = each.turn if sample.turn_rewards else 0
            each.advantage = sum(centred[first:])


def _give_estimates(
    sample: Sample, tokens: Sequence[_Token], algorithm: AlgorithmConfig, policy: RecurrentPolicy
) -> None:
    """Generalized advantage estimation along each sequence, as a sum over all that come after a token in it."""
    for sequence in {each.sequence for each in tokens}:
        own = [each for each in tokens if each.sequence == sequence]
        values = [torch.dot(policy.state_after(each.prefix), policy.value).item() for each in own]
        rewards = [0.0] * len(own)
        if sample.turn_rewards:
            for place, (here, behind) in enumerate(pairwise([*(each.turn for each in own), math.inf])):
                if here != behind:
                    between = range(int(here), int(min(behind, len(sample.turn_rewards))))
                    rewards[place] = sum(sample.turn_rewards[number] for number in between)
        else:
            rewards[-1] = sample.reward or 0.0
        deltas = [
            reward + algorithm.discount * after - before
            for reward, before, after in zip(rewards, values, [*values[1:], 0.0], strict=True)
        ]
        for place, each in enumerate(own):
            decay = algorithm.discount * algorithm.gae_lambda
            each.advantage = sum(delta * decay**by for by, delta in enumerate(deltas[place:]))
            each.expected = values[place] + each.advantage


def _loss(each: _Token, algorithm: AlgorithmConfig, policy: RecurrentPolicy) -> Tensor:
    ratio = torch.exp(policy.logprob(each.prefix, each.token) - each.behaviour)
    clipped = torch.clamp(ratio, 1 - algorithm.clip_low, 1 + algorithm.clip_high)
    loss = -torch.minimum(ratio * each.advantage, clipped * each.advantage)
    if algorithm.advantage != "gae":
        return loss
    error = torch.dot(policy.state_after(each.prefix), policy.value) - each.expected
    return loss + algorithm.value_coefficient * error.square() / 2
