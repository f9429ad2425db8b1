"""The configuration that DeepSpeed is started with: what rollog decides, over what a run sets itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from rollog.settings.training import TrainerConfig

_zero = "zero_optimization"
_on_cpu = {"device": "cpu"}


def is_accumulated_wide(trainer: TrainerConfig, dtype: str) -> bool:
    """Whether gradients are added up in another type, float32, than the model's `dtype`."""
    return trainer.gradient_dtype == "float32" and dtype != "float32"


def deepspeed_config(trainer: TrainerConfig, dtype: str, max_norm: float) -> dict[str, Any]:
    """DeepSpeed's configuration for a model of `dtype`, whose gradients are clipped to `max_norm`; 0 is not at all."""
    offloaded = (
        {"offload_optimizer": _on_cpu} if trainer.offload_optimizer else {},
        {"offload_param": _on_cpu} if trainer.offload_parameters else {},
    )
    zero = {"stage": trainer.zero_stage, "overlap_comm": False, **offloaded[0], **offloaded[1]}
    return {
        **trainer.deepspeed,
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": max_norm,
        _zero: {**trainer.deepspeed.get(_zero, {}), **zero},
        "zero_allow_untested_optimizer": True,
        # PyTorch's AdamW takes the steps on processors, too: DeepSpeed's own is compiled where it first runs.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": dtype == "bfloat16"},
        "steps_per_print": 2**31,
        **(_wide_gradients(trainer) if is_accumulated_wide(trainer, dtype) else {}),
    }


def check_config(deepspeed: Any, config: dict[str, Any]) -> None:
    """Have DeepSpeed read its configuration. Raises ConfigError for what it does not take."""
    try:
        deepspeed.DeepSpeedConfig(config)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise _refusal(deepspeed, f"{error.title}: {'; '.join(problems)}") from error
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise _refusal(deepspeed, str(error)) from error


def _refusal(deepspeed: Any, problem: str) -> ConfigError:
    return ConfigError(
        f"[trainer.deepspeed] does not fit DeepSpeed {deepspeed.__version__} ({problem}); correct what is named, or "
        "leave it out"
    )


def _wide_gradients(trainer: TrainerConfig) -> dict[str, Any]:
    """Gradients go to other ranks in float32, and are added up in it."""
    accumulated = {} if trainer.zero_stage == 0 else {"data_types": {"grad_accum_dtype": "fp32"}}
    return {"communication_data_type": "fp32", **accumulated}
