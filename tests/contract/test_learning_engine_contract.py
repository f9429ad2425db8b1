"""What every engine that learns promises, with the naive engine as the reference."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch
from safetensors.torch import load
from support.exports import exported_by
from support.small_training import a_batch, make_model
from support.training_engines import deepspeed, learning_makers, naive, plain, step_settings, temperature

from rollog.kernel.errors import EngineError
from rollog.settings.training import AlgorithmConfig, AlgorithmType, OptimizerConfig, TrainerConfig
from trainer.engines.deepspeed import DeepSpeedEngine
from trainer.engines.plain import PlainEngine, checkpoint_file
from trainer.model.arithmetic import arithmetic_facts
from trainer.model.policy import load_model, untied_tensors
from trainer.step.ports import StepResult, StepSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainer.engines.ports import TrainingEngine

pytestmark = pytest.mark.engine

makers: dict[str, Callable[[], TrainingEngine]] = {"naive": naive} | learning_makers


@pytest.fixture(params=list(makers))
def engine(request: pytest.FixtureRequest) -> Iterator[TrainingEngine]:
    made = makers[request.param]()
    yield made
    made.close()


def test_a_new_engine_exports_the_weights_of_the_directory(engine: TrainingEngine, model_path: str) -> None:
    engine.start(model_path)
    exported = load(exported_by(engine))
    expected = dict(untied_tensors(load_model(model_path, None, "float32")))
    assert exported.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in exported.items())


def test_log_probabilities_of_a_sequence_are_those_of_the_published_weights_at_temperature_1(
    engine: TrainingEngine, model_path: str
) -> None:
    assert temperature != 1.0
    tokens = [5, 0, 22, 7, 7, 13, 1]
    engine.start(model_path)
    for seed in range(2):
        model = load_model(model_path, None, "float32")
        exported = load(exported_by(engine))
        for name, tensor in untied_tensors(model):
            tensor.data.copy_(exported[name])
        every = model(input_ids=torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        expected = every.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        assert engine.sequence_logprobs(tokens) == pytest.approx(expected.tolist(), abs=2e-6)
        engine.train_step(a_batch(seed))


def test_steps_give_the_weights_of_the_reference(engine: TrainingEngine, model_path: str) -> None:
    reference = naive()
    reference.start(model_path)
    engine.start(model_path)
    for seed in range(3):
        batch = a_batch(seed, micro_batch_tokens=25)
        expected, result = reference.train_step(batch), engine.train_step(batch)
        assert result.losses == pytest.approx(expected.losses, abs=1e-5)
        assert result.gradient_norms == pytest.approx(expected.gradient_norms, rel=2e-4)
        assert result.learning_rates == expected.learning_rates
    expected_weights = load(exported_by(reference))
    weights = load(exported_by(engine))
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(weights[name], tensor, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("maker", [partial(deepspeed, 3), plain], ids=["zero-3", "plain"])
def test_packed_steps_give_the_weights_of_the_reference(
    maker: Callable[..., TrainingEngine], model_path: str
) -> None:
    settings = replace(step_settings, algorithm=AlgorithmConfig(type="tis", kl_coefficient=0.1))
    found = []
    for engine in (naive(), maker(packing=True)):
        engine.start(model_path)
        engine.change_settings(settings)
        for seed in range(3):
            result = engine.train_step(a_batch(seed, micro_batch_tokens=40, packing=True))
        found.append((result, load(exported_by(engine))))
        engine.close()
    (result, weights) = found[1]
    agree(weights, result, found[0])


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3, None])
def test_activations_computed_twice_give_the_same_weights(zero_stage: int | None, model_path: str) -> None:
    settings = replace(step_settings, algorithm=AlgorithmConfig(type="tis", kl_coefficient=0.1))
    exports = []
    num_forwards = []
    for twice in (False, True):
        trainer = TrainerConfig(zero_stage=zero_stage or 0, num_minibatches=2, activation_checkpointing=twice)
        kind = PlainEngine if zero_stage is None else DeepSpeedEngine
        engine = kind(settings=settings, trainer=trainer, temperature=temperature, dtype="float32")
        engine.start(model_path)
        calls: list[None] = []
        first_layer_of(engine).register_forward_hook(lambda *_, calls=calls: calls.append(None))
        for seed in range(2):
            engine.train_step(a_batch(seed, micro_batch_tokens=25))
        exports.append(exported_by(engine))
        num_forwards.append(len(calls))
        engine.close()
    assert exports[0] == exports[1]
    assert num_forwards[1] > num_forwards[0]


def first_layer_of(engine: PlainEngine | DeepSpeedEngine) -> torch.nn.Module:
    """What the first decoder layer begins with: where the layer is computed again, so is this."""
    model: Any = vars(engine)["_state"].prepared.model
    begin: torch.nn.Module = model.model.layers[0].input_layernorm
    return begin


other_optimizer = {
    "learning_rate": 1e-3,
    "betas": (0.5, 0.6),
    "epsilon": 1e-3,
    "weight_decay": 0.5,
    "max_gradient_norm": 0.01,
}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(other_optimizer, id="all"),
        *(
            pytest.param({name: value}, id=name, marks=pytest.mark.slow)
            for name, value in other_optimizer.items()
        ),
    ],
)
def test_changed_settings_give_what_an_engine_gives_that_has_them(
    engine: TrainingEngine, model_path: str, tmp_path: Path, changed: dict[str, Any]
) -> None:
    other = replace(step_settings, optimizer=step_settings.optimizer.model_copy(update=changed))
    engine.start(model_path)
    engine.train_step(a_batch(0))
    engine.save_checkpoint(tmp_path)
    engine.train_step(a_batch(1))
    unchanged = exported_by(engine)

    exports = []
    for goes_by_checkpoint in (False, True):
        engine.start(model_path)
        engine.change_settings(step_settings)
        if goes_by_checkpoint:
            engine.change_settings(other)
            engine.load_checkpoint(tmp_path)
        else:
            engine.train_step(a_batch(0))
        engine.change_settings(other)
        engine.train_step(a_batch(1))
        exports.append(exported_by(engine))
    assert exports[0] == exports[1]
    assert exports[0] != unchanged


def test_changed_settings_are_those_of_the_formulas(engine: TrainingEngine, model_path: str) -> None:
    other = StepSettings(
        algorithm=AlgorithmConfig(clip_low=0.1, clip_high=0.1, aggregation="sequence_mean"),
        optimizer=OptimizerConfig(
            learning_rate=1e-3, betas=(0.5, 0.6), epsilon=1e-4, weight_decay=20.0, max_gradient_norm=0.05
        ),
        num_optimizer_steps=7,
    )
    reference = naive()
    for made in (reference, engine):
        made.start(model_path)
        made.train_step(a_batch(0))
        made.change_settings(other)
    expected, result = reference.train_step(a_batch(1)), engine.train_step(a_batch(1))
    assert result.losses == pytest.approx(expected.losses, abs=1e-5)
    assert result.learning_rates == expected.learning_rates
    expected_weights = load(exported_by(reference))
    weights = load(exported_by(engine))
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(weights[name], tensor, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("name", [*get_args(AlgorithmType)])
def test_every_algorithm_gives_the_weights_of_the_reference_twice_alike(
    name: AlgorithmType, model_path: str
) -> None:
    settings = replace(step_settings, algorithm=AlgorithmConfig(type=name, max_response_tokens=8))
    results, reference = taken_under(
        settings, model_path, deepspeed(1), deepspeed(1), plain(), plain(), naive()
    )
    (result, weights, exported), *again, (of_plain, plain_weights, _) = results
    assert again[0][::2] == (result, exported)
    assert again[1][::2] == results[-1][::2]
    assert of_plain.losses == pytest.approx(result.losses, abs=1e-5)
    for tensor_name, tensor in plain_weights.items():
        torch.testing.assert_close(tensor, weights[tensor_name], atol=1e-5, rtol=1e-5)
    assert all(math.isfinite(loss) for loss in result.losses)
    assert all(norm > 0 for norm in result.gradient_norms)
    agree(weights, result, reference)


@pytest.mark.parametrize(
    "engine",
    [name if name in {"plain", "zero-3"} else pytest.param(name, marks=pytest.mark.slow) for name in makers],
    indirect=True,
)
@pytest.mark.parametrize(
    "changed",
    [
        {"kl_coefficient": 0.3, "entropy_coefficient": 0.1},
        {"type": "tis", "kl_coefficient": 0.3, "kl_estimator": "k2", "dual_clip": 3.0},
        {"kl_coefficient": 0.3, "kl_weight": "ratio"},
        {"type": "topr", "mask_ratio_low": 0.5, "mask_ratio_high": 1.5, "mask_level": "sequence"},
    ],
    ids=["kl-and-entropy", "tis-kl", "weighted-kl", "topr-mask"],
)
def test_penalties_and_masks_are_those_of_the_formulas(
    engine: TrainingEngine, model_path: str, changed: dict[str, Any]
) -> None:
    settings = replace(step_settings, algorithm=AlgorithmConfig(**changed, max_response_tokens=8))
    results, reference = taken_under(settings, model_path, engine, naive())
    result, weights, _ = results[0]
    agree(weights, result, reference)


@pytest.mark.parametrize("maker", [plain, partial(deepspeed, 1)], ids=["plain", "zero-1"])
def test_several_passes_are_more_minibatches_under_the_same_proximal_policy(
    maker: Callable[[], TrainingEngine], model_path: str
) -> None:
    settings = replace(step_settings, algorithm=AlgorithmConfig(type="tis"))
    results, reference = taken_under(settings, model_path, maker(), naive(), num_epochs=3)
    result, weights, _ = results[0]
    assert len(result.losses) == 6
    agree(weights, result, reference)


def test_a_divergence_in_the_reward_moves_the_advantages(model_path: str) -> None:
    batch = a_batch(0, with_rewards=True)
    exports = []
    for coefficient in (0.0, 1e-9, 0.5, 0.5):
        engine = deepspeed(1)
        engine.start(model_path)
        engine.change_settings(
            replace(
                step_settings,
                algorithm=AlgorithmConfig(type="rloo", kl_coefficient=coefficient, max_response_tokens=8),
            )
        )
        exports.append((engine.train_step(batch), exported_by(engine)))
        engine.close()
    (_, without), (barely, almost_without), (result, with_divergence), again = exports
    for name, tensor in load(almost_without).items():
        torch.testing.assert_close(load(without)[name], tensor, atol=1e-5, rtol=1e-4)
    assert with_divergence != without
    assert (result, with_divergence) == again
    assert result.statistics["reward_divergence"] == barely.statistics["reward_divergence"]


def taken_under(
    settings: StepSettings, model_path: str, *engines: TrainingEngine, num_epochs: int = 1
) -> tuple[
    list[tuple[StepResult, dict[str, torch.Tensor], bytes]], tuple[StepResult, dict[str, torch.Tensor]]
]:
    """Two steps on each engine, of different staleness; what the last one, the reference, gave stands apart."""
    found = []
    for engine in engines:
        engine.start(model_path)
        engine.change_settings(settings)
        for seed in (0, 1):
            result = engine.train_step(a_batch(seed, micro_batch_tokens=25, num_epochs=num_epochs))
        exported = exported_by(engine)
        found.append((result, load(exported), exported))
        engine.close()
    *others, (expected, weights, _) = found
    return others, (expected, weights)


def agree(
    weights: dict[str, torch.Tensor],
    result: StepResult,
    reference: tuple[StepResult, dict[str, torch.Tensor]],
) -> None:
    expected, expected_weights = reference
    assert result.losses == pytest.approx(expected.losses, abs=1e-4)
    assert result.gradient_norms == pytest.approx(expected.gradient_norms, rel=1e-3)
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(weights[name], tensor, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("maker", learning_makers.values(), ids=learning_makers)
def test_micro_batches_only_cut_up_the_work(maker: Callable[[], TrainingEngine], model_path: str) -> None:
    results = []
    engine = maker()
    for tokens in (1000, 25, 1):
        engine.start(model_path)
        result = engine.train_step(a_batch(micro_batch_tokens=tokens))
        results.append((result, load(exported_by(engine))))
    engine.close()
    (whole, weights), *others = results
    for result, other_weights in others:
        assert result.losses == pytest.approx(whole.losses, abs=1e-5)
        assert result.gradient_norms == pytest.approx(whole.gradient_norms, rel=1e-4)
        assert result.statistics == pytest.approx(whole.statistics, rel=1e-3, abs=1e-5)
        for name, tensor in weights.items():
            torch.testing.assert_close(other_weights[name], tensor, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("maker", [lambda: deepspeed(1), plain], ids=["zero-1", "plain"])
@pytest.mark.parametrize("tied", [True, False])
def test_an_export_holds_each_tensor_once_and_loads_back(
    tmp_path: Path, maker: Callable[[], TrainingEngine], *, tied: bool
) -> None:
    path = make_model(tmp_path / "model", tied=tied)
    engine = maker()
    engine.start(path)
    engine.train_step(a_batch())
    exported = exported_by(engine)
    engine.close()
    assert ("lm_head.weight" in load(exported)) is not tied
    file = tmp_path / "weights.safetensors"
    file.write_bytes(exported)
    loaded = dict(untied_tensors(load_model(path, file, "float32")))
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in load(exported).items())


@pytest.mark.parametrize("zero_stage", [0, 1, 3, None])
def test_bfloat16_is_exported_as_bfloat16_and_learns(
    zero_stage: int | None, model_path: str, tmp_path: Path
) -> None:
    engine = plain("bfloat16") if zero_stage is None else deepspeed(zero_stage, "bfloat16")
    engine.start(model_path)
    before = exported_by(engine)
    engine.train_step(a_batch(0))
    after = exported_by(engine)
    engine.save_checkpoint(tmp_path)
    engine.train_step(a_batch(1))
    again = exported_by(engine)
    engine.start(model_path)
    engine.load_checkpoint(tmp_path)
    engine.train_step(a_batch(1))
    redone = exported_by(engine)
    engine.close()
    assert {tensor.dtype for tensor in load(after).values()} == {torch.bfloat16}
    assert before != after
    assert redone == again


def test_the_engine_describes_what_a_replay_must_match(model_path: str) -> None:
    engine = deepspeed(2)
    engine.start(model_path)
    description = engine.describe()
    engine.close()
    assert (description.name, description.world_size, description.zero_stage) == ("deepspeed", 1, 2)
    assert description.dtype == "float32"
    assert '"hidden_size": 16' in description.model_config_json
    assert {"deepspeed", "torch", "transformers"} <= description.versions.keys()


def test_the_plain_engine_says_what_it_is(model_path: str) -> None:
    engine = plain()
    engine.start(model_path)
    description = engine.describe()
    engine.close()
    assert (description.name, description.world_size, description.zero_stage) == ("torch", 1, 0)
    facts = arithmetic_facts(torch.device("cuda" if torch.cuda.is_available() else "cpu"), "machine")
    assert description.versions.keys() == {"torch", "transformers"} | facts.keys()


def test_a_file_that_is_no_checkpoint_of_the_plain_engine_is_named(model_path: str, tmp_path: Path) -> None:
    (tmp_path / checkpoint_file).write_bytes(b"no checkpoint")
    engine = plain()
    engine.start(model_path)
    with pytest.raises(EngineError, match=str(tmp_path)):
        engine.load_checkpoint(tmp_path)
    engine.close()


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_in_bfloat16_the_plain_engine_gives_the_weights_of_deepspeed(zero_stage: int, tmp_path: Path) -> None:
    # Not tied: DeepSpeed adds up the two gradients of a tied layer in bfloat16.
    model_path = make_model(tmp_path, tied=False)
    exports = []
    for engine in (deepspeed(zero_stage, "bfloat16"), plain("bfloat16")):
        engine.start(model_path)
        for seed in (0, 1):
            engine.train_step(a_batch(seed))
        exports.append(load(exported_by(engine)))
        engine.close()
    for name, tensor in exports[0].items():
        torch.testing.assert_close(exports[1][name], tensor, atol=1e-5, rtol=1e-5)
