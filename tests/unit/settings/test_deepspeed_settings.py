"""Offloading and DeepSpeed's own settings: what fits together, what belongs to other keys, what is passed on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from rollog.kernel.errors import ConfigError
from rollog.settings.settings import Settings
from rollog.settings.sources import load_settings
from rollog.settings.training import TrainerConfig
from trainer.engines.deepspeed_config import deepspeed_config


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"engine": "torch", "offload_optimizer": True}, 'set engine = "deepspeed"'),
        (
            {"engine": "torch", "zero_stage": 3, "offload_parameters": True},
            'leave them out with engine = "torch"',
        ),
        ({"engine": "torch", "deepspeed": {"wall_clock_breakdown": True}}, "are settings of DeepSpeed"),
        (
            {"zero_stage": 0, "offload_optimizer": True},
            "offload_optimizer = true needs zero_stage = 1, 2 or 3",
        ),
        ({"zero_stage": 2, "offload_parameters": True}, "offload_parameters = true needs zero_stage = 3"),
    ],
)
def test_offloading_that_the_engine_cannot_do_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainerConfig(**keys)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_optimizers_are_offloaded_from_stage_one_on(zero_stage: int) -> None:
    trainer = TrainerConfig(zero_stage=zero_stage, offload_optimizer=True)
    zero = deepspeed_config(trainer, "bfloat16", 1.0)["zero_optimization"]
    assert zero == {"stage": zero_stage, "overlap_comm": False, "offload_optimizer": {"device": "cpu"}}


owned = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 2,
    "managed_gradient_accumulation": True,
    "optimizer": {"type": "Adam"},
    "scheduler": {"type": "WarmupLR"},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "bfloat16": {"enabled": True},
    "fp16": {"enabled": True},
    "amp": {"enabled": True},
    "torch_autocast": {"enabled": True},
    "data_types": {"grad_accum_dtype": "bf16"},
    "communication_data_type": "bf16",
    "gradient_allreduce_op": "sum",
    "steps_per_print": 1,
    "zero_allow_untested_optimizer": False,
    "zero_force_ds_cpu_optimizer": True,
}
owned_of_zero = {
    "stage": 2,
    "overlap_comm": True,
    "compute_grad_norm": False,
    "offload_optimizer": {"device": "cpu"},
    "cpu_offload": True,
    "cpu_offload_use_pin_memory": True,
    "offload_param": {"device": "cpu"},
    "cpu_offload_param": True,
    "zenflow": {"topk_ratio": 0.1},
    "zero_quantized_weights": True,
    "zero_quantized_nontrainable_weights": True,
    "zero_quantized_gradients": True,
}


@pytest.mark.parametrize(
    ("place", "table"),
    [(name, {name: value}) for name, value in owned.items()]
    + [
        (f"zero_optimization.{name}", {"zero_optimization": {name: value}})
        for name, value in owned_of_zero.items()
    ],
)
def test_what_belongs_to_another_key_is_refused_by_name(place: str, table: dict[str, Any]) -> None:
    pattern = rf"trainer\.deepspeed\.{re.escape(place)} cannot be set: .+; leave it out"
    with pytest.raises(ValidationError, match=pattern):
        TrainerConfig(deepspeed=table)


def test_all_that_is_refused_is_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        TrainerConfig(deepspeed={"bf16": {}, "zero_optimization": {"stage": 3}})
    assert "model.dtype decides that" in str(caught.value)
    assert "set trainer.zero_stage" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "table"),
    [
        ("aio.nvme_path", {"aio": {"nvme_path": "/disk"}}),
        ("zero_optimization.other.device", {"zero_optimization": {"other": {"device": "nvme"}}}),
    ],
)
def test_a_place_on_a_disk_is_refused_wherever_it_stands(place: str, table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"{re.escape(place)} cannot be set: nothing is kept on disks"):
        TrainerConfig(deepspeed=table)


def test_zero_optimization_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"trainer\.deepspeed\.zero_optimization = True is no table"):
        TrainerConfig(deepspeed={"zero_optimization": True})


def test_further_settings_stand_beside_those_of_rollog() -> None:
    further = {"wall_clock_breakdown": True, "zero_optimization": {"reduce_bucket_size": 1000}}
    trainer = TrainerConfig(zero_stage=2, deepspeed=further)
    plain = deepspeed_config(TrainerConfig(zero_stage=2), "bfloat16", 1.0)
    config = deepspeed_config(trainer, "bfloat16", 1.0)
    assert config.pop("wall_clock_breakdown") is True
    assert config["zero_optimization"].pop("reduce_bucket_size") == 1000
    assert config == plain


def test_a_table_is_read_from_a_file_and_an_assignment_and_survives_the_manifest() -> None:
    sections = {"trainer": {"deepspeed": {"zero_optimization": {"reduce_bucket_size": 1000}}}}
    settings = load_settings(
        sections=sections, assignments=["trainer.deepspeed.zero_optimization.allgather_bucket_size=2000"]
    )
    assert settings.trainer.deepspeed == {
        "zero_optimization": {"reduce_bucket_size": 1000, "allgather_bucket_size": 2000}
    }
    assert Settings.from_manifest(settings.to_manifest()) == settings


def test_a_refusal_says_where_the_value_came_from() -> None:
    with pytest.raises(ConfigError, match=r"gradient_clipping cannot be set: optimizer\.max_gradient_norm"):
        load_settings(with_demo=False, assignments=["trainer.deepspeed.gradient_clipping=2.0"])
