"""Padding, and what the policy makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from support.exports import export_of
from support.small_training import NaiveEngine, a_training_sample, make_model

from benchmarks.harness.exports import file_of
from rollog.kernel.errors import DataError, WeightsError
from trainer.model.policy import Policy, checkpoint_activations, load_model, untied_tensors
from trainer.step.collation import collate
from trainer.step.forward import frozen_logprobs, policy_outputs

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.step.ports import TrainingSample


def samples_of_many_shapes() -> list[TrainingSample]:
    return [
        a_training_sample(1, prompt_tokens=1, response_tokens=6),
        a_training_sample(2, prompt_tokens=5, response_tokens=1),
        a_training_sample(3, prompt_tokens=2, response_tokens=4, mask=[1, 0, 0, 1]),
        a_training_sample(4, prompt_tokens=3, response_tokens=2, mask=[0, 0]),
    ]


def test_sequences_are_padded_on_the_right_and_masks_follow_the_loss_mask() -> None:
    first = a_training_sample(1, prompt_tokens=2, response_tokens=3, mask=[1, 0, 1])
    second = a_training_sample(2, prompt_tokens=1, response_tokens=1)
    batch = collate([first, second], pad_token_id=9)
    assert batch.input_ids_ST.tolist() == [
        [*first.prompt_token_ids, *first.token_ids],
        [*second.prompt_token_ids, *second.token_ids, 9, 9, 9],
    ]
    assert batch.mask_BR.tolist() == [[True, False, True], [True, False, False]]
    assert batch.source_N.tolist() == [1, 3, 5]
    assert batch.response_N.tolist() == [0, 2, 3]
    assert batch.target_N.tolist() == [first.token_ids[0], first.token_ids[2], second.token_ids[0]]


def test_no_samples_make_a_micro_batch_that_trains_nothing() -> None:
    batch = collate([])
    assert batch.input_ids_ST.shape == (1, 1)
    assert not batch.mask_BR.any()
    assert batch.source_N.numel() == 0


@pytest.mark.engine
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_padded_logprobs_are_those_of_each_sample_alone(
    tmp_path: Path, temperature: float, *, tied: bool
) -> None:
    path = make_model(tmp_path, tied=tied)
    naive = NaiveEngine(temperature=temperature)
    naive.start(path)
    policy = Policy(load_model(path, None, "float32"), temperature)
    samples = samples_of_many_shapes()
    batch = collate(samples)
    logprobs_BR = frozen_logprobs(policy, batch)
    for row, sample in enumerate(samples):
        kept = np.flatnonzero(sample.loss_mask)
        torch.testing.assert_close(logprobs_BR[row, kept], naive.logprobs(sample)[kept], atol=1e-5, rtol=1e-5)
        assert (logprobs_BR[row][~batch.mask_BR[row]] == 0).all()


@pytest.mark.engine
def test_the_padding_token_has_no_influence(tmp_path: Path) -> None:
    policy = Policy(load_model(make_model(tmp_path), None, "float32"), 1.0)
    samples = samples_of_many_shapes()
    first, second = (frozen_logprobs(policy, collate(samples, pad_token_id=token)) for token in (0, 7))
    assert torch.equal(first, second)


@pytest.mark.engine
def test_entropies_are_those_of_the_distributions_at_the_sampling_temperature(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path), None, "float32")
    policy = Policy(model, 0.7)
    batch = collate([a_training_sample(3, mask=[1, 0, 1, 1])])
    logprobs, entropies, _ = policy_outputs(policy, batch, with_entropy=True)
    assert entropies is not None
    assert torch.equal(logprobs, frozen_logprobs(policy, batch))
    every = (model(input_ids=batch.input_ids_ST).logits[0] / 0.7).log_softmax(dim=-1)[2:-1]
    expected = -(every.exp() * every).sum(dim=-1) * torch.tensor([1, 0, 1, 1])
    torch.testing.assert_close(entropies[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.engine
def test_dropout_is_off_in_training(tmp_path: Path) -> None:
    policy = Policy(load_model(make_model(tmp_path, dropout=0.5), None, "float32"), 1.0)
    policy.train()
    batch = collate(samples_of_many_shapes())
    assert torch.equal(frozen_logprobs(policy, batch), frozen_logprobs(policy, batch))


@pytest.mark.engine
def test_a_model_that_cannot_compute_its_layers_twice_is_refused(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path), None, "float32")
    model.supports_gradient_checkpointing = False
    with pytest.raises(DataError, match=r"activation_checkpointing = true: Qwen2ForCausalLM cannot"):
        checkpoint_activations(model)


@pytest.mark.engine
def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match=str(tmp_path)):
        load_model(str(tmp_path), None, "float32")


@pytest.mark.engine
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    weights = tmp_path / "weights.safetensors"
    tensors = dict(untied_tensors(load_model(path, None, "float32")))
    tensors["model.norm.weight"] = torch.ones(3)
    weights.write_bytes(file_of(export_of(tensors)))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
        load_model(path, weights, "float32")
    weights.write_bytes(b"garbage")
    with pytest.raises(WeightsError, match="cannot be read"):
        load_model(path, weights, "float32")


@pytest.mark.engine
def test_weights_from_a_file_replace_those_of_the_directory(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    weights = tmp_path / "weights.safetensors"
    tensors = {
        name: torch.ones_like(tensor) for name, tensor in untied_tensors(load_model(path, None, "float32"))
    }
    weights.write_bytes(file_of(export_of(tensors)))
    loaded = load_model(path, weights, "float32")
    assert all((tensor == 1).all() for _, tensor in untied_tensors(loaded))
    output_layer = cast("torch.nn.Linear", loaded.get_output_embeddings())  # type: ignore[no-untyped-call]
    assert (output_layer.weight == 1).all()
