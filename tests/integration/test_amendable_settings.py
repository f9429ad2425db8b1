"""Every amendable key is changed on a running trainer, and its effect looked for: none is taken and then ignored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from support.small_training import (
    FakeRun,
    a_rollout,
    make_model,
    trainer_settings,
    turn_until,
    turn_until_version,
)

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import EngineError
from rollog.kernel.metrics import Metrics
from rollog.settings.scopes import amendable_keys
from rollog.settings.training import TrainerConfig
from schemas import FinishReason, LedgerKind, Step, WeightsPruned
from schemas.codec import decode
from trainer.role import training_engine
from trainer.settings import amended
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainer.loop import Trainer
    from trainer.settings import TrainerSettings

pytestmark = pytest.mark.engine

rewards = (0.0, 1.0, 0.25, 0.5)


@dataclass(frozen=True, slots=True)
class Session:
    """One run in memory, and the settings that its manifest would have."""

    run: FakeRun
    settings: TrainerSettings

    def trainer(self, amendment: Mapping[str, object], **settings: object) -> Trainer:
        """A trainer that amends the run; `settings` replace some of its engine's own, by dotted key."""
        clock = count()
        return start_trainer(
            self.settings,
            self.run.broker,
            Metrics(),
            training_engine(amended(self.settings, settings)),
            amendment=amendment,
            clock=lambda: float(next(clock)),
        )

    def train(self, trainer: Trainer, *versions: int) -> None:
        """Let the trainer make these versions, each from two groups of rollouts under the one before."""
        for version in versions:
            sha256 = trainer.ledger.weights[version - 1]
            for group in (2 * version - 2, 2 * version - 1):
                self.send_group(group, sha256, version - 1)
            turn_until_version(trainer, version)

    def send_group(self, group: int, sha256: str, version: int = 0, **changes: Any) -> None:
        """Two finished rollouts of one prompt."""
        for replica in range(2):
            reward = {"reward": rewards[(2 * group + replica) % len(rewards)]} | changes
            self.run.send(a_rollout(group, replica, weights_sha256=sha256, version=version, **reward))


def trained(session: Session, amendment: Mapping[str, object]) -> object:
    """What the first step after the amendment gave: plan, losses, gradient norms, learning rates and weights."""
    with session.trainer(amendment) as trainer:
        session.train(trainer, 1)
    (step,) = (record.body for record in session.run.ledger() if isinstance(record.body, Step))
    return (step.plan, step.losses, step.gradient_norms, step.learning_rates, step.weights_sha256)


def trained_when_cut_off(session: Session, amendment: Mapping[str, object]) -> object:
    """What a step over responses gave of which those of one group were cut off."""
    with session.trainer(amendment) as trainer:
        sha256 = trainer.ledger.weights[0]
        session.send_group(0, sha256)
        session.send_group(1, sha256, finish_reason=FinishReason.LENGTH)
        turn_until_version(trainer, 1)
        return trainer.ledger.weights[1]


def alpha_after(num_steps: int) -> Callable[[Session, Mapping[str, object]], object]:
    """Looks at the alpha in force after so many steps."""

    def look(session: Session, amendment: Mapping[str, object]) -> object:
        with session.trainer(amendment) as trainer:
            session.train(trainer, *range(1, num_steps + 1))
            return trainer.ledger.alpha

    return look


def checkpoints(session: Session, amendment: Mapping[str, object]) -> object:
    """The checkpoints of a run that has made two of its three steps."""
    with session.trainer(amendment) as trainer:
        session.train(trainer, 1, 2)
    return sorted(path.name for path in session.settings.checkpoints.glob("step-*"))


def let_go(session: Session, amendment: Mapping[str, object]) -> object:
    """Which versions a run of six steps let go."""
    with session.trainer(amendment) as trainer:
        session.train(trainer, 1, 2, 3, 4, 5, 6)
        trainer.run_once()
    found = [decode(record.value or b"") for record in session.run.broker_records(session.run.topics.weights)]
    return sorted(
        version for record in found if isinstance(record, WeightsPruned) for version in record.versions
    )


def last_version(session: Session, amendment: Mapping[str, object]) -> object:
    """How many of two steps a run makes before it closes itself."""
    with session.trainer(amendment) as trainer:
        session.train(trainer, 1)
        session.send_group(2, trainer.ledger.weights[1], 1)
        session.send_group(3, trainer.ledger.weights[1], 1)
        session.run.end_dataset(3)
        session.run.stop()
        turn_until(trainer, lambda: trainer.ledger.is_closed, "the ledger is closed")
        return trainer.ledger.version


def verdict_records(session: Session, amendment: Mapping[str, object]) -> object:
    """Which records tell of two groups without signal, one after the other, before a step is made."""
    with session.trainer(amendment) as trainer:
        for group in (0, 1):
            session.send_group(group, trainer.ledger.weights[0], reward=1.0)
            for _ in range(3):
                trainer.run_once()
        for group in (2, 3):
            session.send_group(group, trainer.ledger.weights[0])
        turn_until_version(trainer, 1)
    return sum(record.kind is LedgerKind.VERDICTS for record in session.run.ledger())


def going_on_elsewhere(session: Session, amendment: Mapping[str, object]) -> object:
    """What becomes of a run whose one step gives other weights to the trainer that takes over."""
    with session.trainer({}) as trainer:
        session.train(trainer, 1)
    # As on a machine that rounds differently.
    elsewhere = replace(
        session.settings, optimizer=session.settings.optimizer.model_copy(update={"epsilon": 1e-6})
    )
    for checkpoint in session.settings.checkpoints.glob("step-*/manifest.json"):
        checkpoint.unlink()
    try:
        with Session(session.run, elsewhere).trainer(amendment) as trainer:
            return trainer.ledger.version
    except EngineError:
        return "stopped"


@dataclass(frozen=True, slots=True)
class Case:
    """A new value of one key, under settings where it has an effect, and where the effect is looked for."""

    value: object
    under: Mapping[str, object] = field(default_factory=dict)
    look: Callable[[Session, Mapping[str, object]], object] = trained


critic = {"algorithm.type": "ppo", "algorithm.advantage": "gae", "trainer.num_epochs": 2}
bounded = {"algorithm.max_response_tokens": 6}
weighted = {**bounded, "algorithm.type": "weighted_topr", "algorithm.aggregation": "sequence_sum"}
diverging = {"algorithm.kl_coefficient": 0.1}
keeping = {"run.num_steps": 6, "trainer.keep_newest_weights": 2, "trainer.weights_grace_seconds": 0.0}
masking = {"algorithm.mask_ratio_low": 0.9, "algorithm.mask_ratio_high": 1.1}
controlled = {"freshness.alpha": "auto", "freshness.auto_wait_share": 0.0, "run.num_steps": 6}
# Neither target is ever missed, so alpha rises; with the largest headroom after every step but the first.
rising = {
    **controlled,
    "freshness.auto_min_effective_sample_size": 1e-6,
    "freshness.auto_max_divergence": 1e9,
    "freshness.auto_headroom": 1.0,
}
# Rollouts of another distribution than the model's: the target of the effective sample size is missed at once.
lowered_by_size = {**controlled, "freshness.auto_max_divergence": 1e9}
lowered_by_divergence = {
    **controlled,
    "freshness.auto_min_effective_sample_size": 1e-6,
    "freshness.auto_max_divergence": 1e-6,
}

cases = {
    "algorithm.type": Case("gspo"),
    "algorithm.advantage": Case("batch"),
    "algorithm.normalize_std": Case(False),
    "algorithm.gae_lambda": Case(0.5, critic),
    "algorithm.discount": Case(0.5, critic),
    "algorithm.value_coefficient": Case(0.5, critic),
    "algorithm.value_clip": Case(1e-6, critic),
    "algorithm.aggregation": Case("sequence_mean"),
    "algorithm.ratio_level": Case("sequence"),
    "algorithm.clip_low": Case(0.01),
    "algorithm.clip_high": Case(0.01),
    "algorithm.dual_clip": Case(1.01),
    "algorithm.weight_low": Case(0.95, {"algorithm.type": "cispo"}),
    "algorithm.weight_high": Case(0.9, {"algorithm.type": "cispo"}),
    "algorithm.positive_weight": Case(0.5, weighted),
    "algorithm.negative_weight": Case(0.5, weighted),
    "algorithm.mask_ratio_low": Case(0.95),
    "algorithm.mask_ratio_high": Case(1.05),
    "algorithm.mask_level": Case("sequence", masking),
    "algorithm.kl_coefficient": Case(0.1),
    "algorithm.kl_estimator": Case("k1", diverging),
    "algorithm.kl_in": Case("reward", diverging),
    "algorithm.kl_weight": Case("ratio", {**diverging, "algorithm.kl_estimator": "k1"}),
    "algorithm.mask_truncated": Case(True, look=trained_when_cut_off),
    "algorithm.entropy_coefficient": Case(0.1),
    "algorithm.overlong_share": Case(0.9, bounded),
    "algorithm.overlong_penalty": Case(3.0, {**bounded, "algorithm.overlong_share": 0.9}),
    "algorithm.max_response_tokens": Case(9, {**bounded, "algorithm.aggregation": "sequence_sum"}),
    "optimizer.learning_rate": Case(1e-3),
    "optimizer.final_fraction": Case(0.5),
    "optimizer.warmup_steps": Case(2),
    "optimizer.betas": Case([0.5, 0.6]),
    "optimizer.epsilon": Case(1e-3),
    "optimizer.weight_decay": Case(0.1),
    "optimizer.max_gradient_norm": Case(1e-3),
    "trainer.num_epochs": Case(2),
    "trainer.num_minibatches": Case(1),
    "trainer.micro_batch_tokens": Case(12),
    "trainer.checkpoint_every_steps": Case(1, look=checkpoints),
    "trainer.keep_checkpoints": Case(1, {"trainer.checkpoint_every_steps": 1}, checkpoints),
    "trainer.keep_newest_weights": Case(4, keeping, let_go),
    "trainer.keep_every_weights": Case(2, keeping, let_go),
    "trainer.weights_grace_seconds": Case(1e9, keeping, let_go),
    "trainer.verdicts_interval_seconds": Case(1e9, look=verdict_records),
    "trainer.allow_rebase": Case(True, look=going_on_elsewhere),
    "run.num_steps": Case(1, look=last_version),
    "freshness.alpha": Case(2.0, look=alpha_after(0)),
    "freshness.barrier_every_steps": Case(2, look=alpha_after(1)),
    "freshness.auto_start": Case(2.0, controlled, alpha_after(0)),
    "freshness.auto_min": Case(1.0, lowered_by_size, alpha_after(1)),
    "freshness.auto_max": Case(1.0, rising, alpha_after(2)),
    "freshness.auto_step": Case(0.5, lowered_by_size, alpha_after(1)),
    "freshness.auto_wait_share": Case(1.0, rising, alpha_after(2)),
    "freshness.auto_min_effective_sample_size": Case(1e-6, lowered_by_size, alpha_after(1)),
    "freshness.auto_max_divergence": Case(1e9, lowered_by_divergence, alpha_after(1)),
    "freshness.auto_headroom": Case(0.0, rising, alpha_after(2)),
}


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Looking:
    """Looks at runs in memory."""
    return Looking(tmp_path_factory, make_model(tmp_path_factory.mktemp("model")))


class Looking:
    """Makes a run in memory for each look, but only one without an amendment for cases that are alike."""

    def __init__(self, directories: pytest.TempPathFactory, model_path: str) -> None:
        self._directories = directories
        self._model_path = model_path
        self._unamended: dict[object, object] = {}

    def at(self, case: Case, amendment: Mapping[str, object]) -> object:
        """What there is to see of a run under the settings of a case, amended."""
        home = self._directories.mktemp("home")
        topics = RunTopics("rollog-test", "amended")
        trainer = TrainerConfig(
            engine="torch", num_minibatches=2, checkpoint_every_steps=10, verdicts_interval_seconds=0.0
        )
        settings = trainer_settings(home, topics, self._model_path, trainer=trainer)
        run = FakeRun(MemoryBroker(), topics)
        run.create_topics()
        return case.look(Session(run, amended(settings, case.under)), amendment)

    def at_unamended(self, case: Case) -> object:
        """The same without an amendment."""
        kind = (frozenset(case.under.items()), case.look)
        if kind not in self._unamended:
            self._unamended[kind] = self.at(case, {})
        return self._unamended[kind]


@pytest.mark.parametrize("key", sorted(amendable_keys))
def test_an_amendable_key_is_acted_on(key: str, looking: Looking) -> None:
    case = cases[key]
    assert looking.at(case, {key: case.value}) != looking.at_unamended(case)


@pytest.mark.parametrize(
    "key",
    ["algorithm.gae_lambda", "trainer.keep_checkpoints", "trainer.allow_rebase", "freshness.auto_headroom"],
)
def test_two_runs_without_an_amendment_look_the_same(key: str, looking: Looking) -> None:
    assert looking.at(cases[key], {}) == looking.at_unamended(cases[key])


def test_only_amendable_keys_are_in_the_table() -> None:
    assert cases.keys() <= amendable_keys
