"""The supervised warm start."""

from __future__ import annotations

import pytest
import torch

from rollog.demo.settings import WarmStartSettings
from rollog.demo.warm_start import rate_at, train

pytestmark = pytest.mark.engine

short = WarmStartSettings(num_steps=3, batch_size=6)


def test_the_number_of_threads_changes_nothing() -> None:
    threads = torch.get_num_threads()
    trained = []
    for asked in (1, 2):
        torch.set_num_threads(asked)
        trained.append(train(0, short).state_dict())
        assert torch.get_num_threads() == asked
    torch.set_num_threads(threads)
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name])


def test_training_moves_the_weights_and_leaves_torch_as_it_was() -> None:
    torch.manual_seed(3)
    state, deterministic = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    first, other = train(0, short), train(1, short)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_progress_is_told_after_every_step() -> None:
    told: list[float] = []
    train(0, short, told.append)
    assert told == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_the_loss_does_not_depend_on_how_a_batch_is_cut() -> None:
    whole = train(0, WarmStartSettings(num_steps=1, batch_size=6, num_micro_batches=1))
    cut = train(0, WarmStartSettings(num_steps=1, batch_size=6, num_micro_batches=3))
    assert torch.allclose(whole.lm_head.weight, cut.lm_head.weight, atol=1e-5)


def test_the_learning_rate_warms_up_stays_and_falls() -> None:
    settings = WarmStartSettings(num_steps=100, num_warmup_steps=10, decay_fraction=0.5)
    assert rate_at(0, settings) == pytest.approx(0.1)
    assert rate_at(30, settings) == 1.0
    assert rate_at(75, settings) == pytest.approx(0.5)
    assert rate_at(100, settings) == 0.0
