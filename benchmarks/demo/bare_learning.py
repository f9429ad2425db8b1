"""What the demo's settings learn, measured with a bare single-process loop that shares no code with the product.

It needs no broker, vLLM or DeepSpeed: sampler, filter, advantages, loss and lag are written out below, so the
figures are independent of the pipeline and say what to expect of it. Rollouts of step s are generated under
version max(0, s - lag); groups without signal are replaced by further prompts until the batch is full.

    python -m benchmarks.demo.bare_learning --cache .rollog/cache --seeds 0 1 2 --lags 0 1 2
    python -m benchmarks.demo.bare_learning --cache .rollog/cache --seeds 0 1 2 --lags 1 --control shuffled
    python -m benchmarks.demo.bare_learning --cache .rollog/cache --set optimizer.learning_rate=1e-3
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen2ForCausalLM

from rollog.demo.countdown import reward
from rollog.demo.model import encode_words, vocabulary
from rollog.demo.prepare import DemoFiles, prepare
from rollog.demo.word_models import eos_token_id
from rollog.settings.sources import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollog.settings.settings import Settings
    from rollog.settings.training import AlgorithmConfig

Row = dict[str, Any]

heading = (
    "| seed | lag | greedy | sampled | tokens | greedy during | rollouts/step: first, mean, max | clipped | CPU s |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One response with what the loss needs."""

    prompt_ids: list[int]
    response_ids: list[int]
    behaviour_logprobs: list[float]
    reward: float


@dataclass(kw_only=True)
class Outcome:
    """What one run came to."""

    seed: int
    lag: int
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)
    rollouts_per_step: list[int] = field(default_factory=list)
    mean_reward: list[float] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)
    generation_seconds: float = 0.0
    training_seconds: float = 0.0


@torch.inference_mode()
def generate(
    model: Qwen2ForCausalLM, prompts: list[list[int]], max_tokens: int, generator: torch.Generator | None
) -> list[tuple[list[int], list[float]]]:
    """Token ids and logprobs per prompt (all of one length); greedy without a generator."""
    responses: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    rows = list(range(len(prompts)))
    cache = DynamicCache(config=model.config)
    input_ids_BT = torch.tensor(prompts)
    for _ in range(max_tokens):
        output = model(input_ids=input_ids_BT, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logprobs_BV = output.logits[:, -1].log_softmax(-1)
        if generator is None:
            tokens_B = logprobs_BV.argmax(-1)
        else:
            tokens_B = torch.multinomial(logprobs_BV.exp(), 1, generator=generator)[:, 0]
        drawn_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
        for index, token, logprob in zip(rows, tokens_B.tolist(), drawn_B.tolist(), strict=True):
            responses[index][0].append(token)
            responses[index][1].append(logprob)
        alive = (tokens_B != eos_token_id).nonzero()[:, 0]
        if len(alive) == 0:
            break
        if len(alive) < len(rows):
            cache.batch_select_indices(alive)
            rows = [rows[index] for index in alive.tolist()]
        input_ids_BT = tokens_B[alive][:, None]
    return responses


def score(row: Row, response_ids: list[int]) -> dict[str, float]:
    """The demo's reward of a response."""
    text = " ".join(vocabulary[token] for token in response_ids if token != eos_token_id)
    return reward(row["prompt"], text, numbers=row["numbers"], target=row["target"])


def evaluate(model: Qwen2ForCausalLM, rows: list[Row], max_tokens: int, seed: int | None) -> dict[str, float]:
    """Means of the reward and its components; greedy without a seed."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    responses = generate(model, [encode_words(row["prompt"]) for row in rows], max_tokens, generator)
    scores = [score(row, tokens) for row, (tokens, _) in zip(rows, responses, strict=True)]
    means = {name: sum(s[name] for s in scores) / len(scores) for name in scores[0]}
    return means | {"tokens": sum(len(tokens) for tokens, _ in responses) / len(responses)}


def endless(rows: list[Row], rng: random.Random) -> Iterator[Row]:
    """Epochs over the prompts, each in its own order."""
    while True:
        yield from rng.sample(rows, len(rows))


def make_groups(
    model: Qwen2ForCausalLM,
    rows: list[Row],
    settings: Settings,
    generator: torch.Generator,
    *,
    shuffled: bool,
) -> list[list[Rollout]]:
    """One group per row; the control hands every reward to another rollout."""
    size = settings.groups.group_size
    repeated = [row for row in rows for _ in range(size)]
    prompts = [encode_words(row["prompt"]) for row in repeated]
    responses = generate(model, prompts, settings.sampling.max_tokens, generator)
    rewards = [score(row, tokens)["reward"] for row, (tokens, _) in zip(repeated, responses, strict=True)]
    if shuffled:
        rewards = [rewards[index] for index in torch.randperm(len(rewards), generator=generator).tolist()]
    rollouts = [
        Rollout(prompt_ids=prompt, response_ids=tokens, behaviour_logprobs=logprobs, reward=value)
        for prompt, (tokens, logprobs), value in zip(prompts, responses, rewards, strict=True)
    ]
    return [rollouts[start : start + size] for start in range(0, len(rollouts), size)]


def has_signal(group: list[Rollout]) -> bool:
    """Whether the rewards of a group differ."""
    return len({rollout.reward for rollout in group}) > 1


def fill_batch(
    model: Qwen2ForCausalLM,
    rows: Iterator[Row],
    settings: Settings,
    generator: torch.Generator,
    *,
    shuffled: bool,
) -> tuple[list[list[Rollout]], list[Rollout]]:
    """Groups with signal for one step, and every rollout made on the way."""
    batch: list[list[Rollout]] = []
    made: list[Rollout] = []
    while len(batch) < settings.groups.groups_per_batch:
        wanted = settings.groups.groups_per_batch - len(batch)
        groups = make_groups(model, list(islice(rows, wanted)), settings, generator, shuffled=shuffled)
        made += [rollout for group in groups for rollout in group]
        batch += [group for group in groups if has_signal(group) or not settings.groups.filter_zero_signal]
    return batch, made


def advantages(group: list[Rollout], *, normalize_std: bool) -> list[float]:
    """Rewards minus their mean, over their standard deviation."""
    rewards = torch.tensor([rollout.reward for rollout in group])
    centred = rewards - rewards.mean()
    return (centred / (rewards.std() + 1e-6) if normalize_std else centred).tolist()


def policy_loss(
    model: Qwen2ForCausalLM, rollouts: list[tuple[Rollout, float]], algorithm: AlgorithmConfig
) -> tuple[Tensor, float]:
    """Clipped loss against the behaviour logprobs, mean over tokens; and the clipped share of tokens."""
    width = max(len(rollout.response_ids) for rollout, _ in rollouts)
    start = len(rollouts[0][0].prompt_ids)
    input_ids_BT = torch.tensor(
        [_right_padded(r.prompt_ids + r.response_ids, start + width) for r, _ in rollouts]
    )
    behaviour_BT = torch.tensor([_right_padded(r.behaviour_logprobs, width) for r, _ in rollouts])
    mask_BT = torch.tensor([_right_padded([1.0] * len(r.response_ids), width) for r, _ in rollouts])
    advantage_B1 = torch.tensor([advantage for _, advantage in rollouts])[:, None]
    logits_BTV = model(input_ids=input_ids_BT, use_cache=False).logits[:, start - 1 : -1]
    logprobs_BT = logits_BTV.log_softmax(-1).gather(2, input_ids_BT[:, start:, None])[..., 0]
    ratio_BT = (logprobs_BT - behaviour_BT).exp()
    clipped_BT = ratio_BT.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    plain_BT, bounded_BT = ratio_BT * advantage_B1, clipped_BT * advantage_B1
    loss = -(torch.minimum(plain_BT, bounded_BT) * mask_BT).sum() / mask_BT.sum()
    clipped = float(((bounded_BT < plain_BT) * mask_BT).sum() / mask_BT.sum())
    return loss, clipped


def _right_padded(values: list[Any], width: int) -> list[Any]:
    return values + [0] * (width - len(values))


def train_step(
    model: Qwen2ForCausalLM,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    batch: list[list[Rollout]],
    settings: Settings,
) -> float:
    """All minibatches of one batch; returns the clipped share."""
    weighted = [
        pair
        for group in batch
        for pair in zip(group, advantages(group, normalize_std=settings.algorithm.normalize_std), strict=True)
    ]
    size = -(-len(weighted) // settings.trainer.num_minibatches)
    shares = []
    for start in range(0, len(weighted), size):
        loss, clipped = policy_loss(model, weighted[start : start + size], settings.algorithm)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.max_gradient_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        shares.append(clipped)
    return sum(shares) / len(shares)


def make_optimizer(
    model: Qwen2ForCausalLM, settings: Settings
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW with linear warm-up and linear decay to the final fraction at the last step."""
    chosen = settings.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=chosen.learning_rate,
        betas=chosen.betas,
        eps=chosen.epsilon,
        weight_decay=chosen.weight_decay,
        fused=True,
    )
    total = settings.run.num_steps * settings.trainer.num_minibatches

    def factor(step: int) -> float:
        decayed = 1 - (1 - chosen.final_fraction) * min(1.0, step / max(1, total - 1))
        return decayed * min(1.0, (step + 1) / max(1, chosen.warmup_steps))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def learn(files: DemoFiles, settings: Settings, *, seed: int, lag: int, shuffled: bool) -> Outcome:
    """One whole run."""
    outcome = Outcome(seed=seed, lag=lag)
    train_rows, held_out = _read(files.train), _read(files.held_out)[: settings.evaluation.num_prompts]
    model = Qwen2ForCausalLM.from_pretrained(files.model)
    behaviour = Qwen2ForCausalLM.from_pretrained(files.model)
    optimizer, schedule = make_optimizer(model, settings)
    rows = endless(train_rows, random.Random(seed))
    generator = torch.Generator().manual_seed(seed)
    max_tokens = settings.sampling.max_tokens
    outcome.before = both(model, held_out, max_tokens, seed)
    versions = deque([_snapshot(model)], maxlen=lag + 1)
    for step in range(1, settings.run.num_steps + 1):
        started = time.process_time()
        behaviour.load_state_dict(versions[0])
        batch, made = fill_batch(behaviour, rows, settings, generator, shuffled=shuffled)
        generated = time.process_time()
        outcome.clipped.append(train_step(model, optimizer, schedule, batch, settings))
        versions.append(_snapshot(model))
        outcome.generation_seconds += generated - started
        outcome.training_seconds += time.process_time() - generated
        outcome.rollouts_per_step.append(len(made))
        outcome.mean_reward.append(sum(rollout.reward for rollout in made) / len(made))
        if settings.evaluation.every_steps and step % settings.evaluation.every_steps == 0:
            outcome.curve.append(evaluate(model, held_out, max_tokens, None)["reward"])
    outcome.after = both(model, held_out, max_tokens, seed)
    return outcome


def both(model: Qwen2ForCausalLM, held_out: list[Row], max_tokens: int, seed: int) -> dict[str, float]:
    """Greedy and sampled held-out figures under one roof."""
    greedy = evaluate(model, held_out, max_tokens, None)
    sampled = evaluate(model, held_out, max_tokens, seed)
    return {f"greedy_{k}": v for k, v in greedy.items()} | {f"sampled_{k}": v for k, v in sampled.items()}


def _snapshot(model: Qwen2ForCausalLM) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def report(outcome: Outcome) -> str:
    """One line of the table."""
    steps, before, after = len(outcome.rollouts_per_step), outcome.before, outcome.after
    made = outcome.rollouts_per_step
    return (
        f"| {outcome.seed} | {outcome.lag} "
        f"| {before['greedy_reward']:.3f} -> {after['greedy_reward']:.3f} "
        f"| {before['sampled_reward']:.3f} -> {after['sampled_reward']:.3f} "
        f"| {before['sampled_tokens']:.1f} -> {after['sampled_tokens']:.1f} "
        f"| {' '.join(f'{value:.2f}' for value in outcome.curve)} "
        f"| {made[0]} / {sum(made) / steps:.0f} / {max(made)} | {max(outcome.clipped):.3f} "
        f"| {outcome.generation_seconds:.1f} + {outcome.training_seconds:.1f} |"
    )


def main() -> None:
    """Print a table row for every seed and lag."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, required=True, help="where the warm start is kept")
    parser.add_argument("--warm-start-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--control", choices=["none", "shuffled"], default="none")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--verbose", action="store_true", help="print every figure of every run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = load_settings(assignments=arguments.overrides)
    files = prepare(arguments.cache, seed=arguments.warm_start_seed)
    print(*heading, sep="\n")
    for lag in arguments.lags:
        for seed in arguments.seeds:
            outcome = learn(files, settings, seed=seed, lag=lag, shuffled=arguments.control == "shuffled")
            print(report(outcome), flush=True)
            if arguments.verbose:
                print(outcome, flush=True)


if __name__ == "__main__":
    main()
