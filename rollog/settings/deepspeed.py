"""Which of DeepSpeed's own settings a run may set (`trainer.deepspeed`), and which follow from other keys.

Pure: a table as DeepSpeed's configuration file has it is looked through for names. Whether the names left are known and
their values fit is for DeepSpeed to say when the engine starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_zero = "zero_optimization"
_batches = "trainer.micro_batch_tokens and trainer.num_minibatches decide that"
_precision = "model.dtype decides that"
_sums = "trainer.gradient_dtype decides that"
_rates = "the section [optimizer] decides that"
_step = "a step of rollog counts on its value"
_optimizer_offload = "set trainer.offload_optimizer"
_parameter_offload = "set trainer.offload_parameters"
_lossy = "weights or gradients would be rounded on their way between ranks"

_owned: Mapping[str, str] = {
    "train_batch_size": _batches,
    "train_micro_batch_size_per_gpu": _batches,
    "gradient_accumulation_steps": _batches,
    "managed_gradient_accumulation": _batches,
    "optimizer": _rates,
    "scheduler": _rates,
    "gradient_clipping": "optimizer.max_gradient_norm decides that",
    "bf16": _precision,
    "bfloat16": _precision,
    "fp16": _precision,
    "amp": _precision,
    "torch_autocast": _precision,
    "data_types": _sums,
    "communication_data_type": _sums,
    "gradient_allreduce_op": _step,
    "steps_per_print": _step,
    "zero_allow_untested_optimizer": _step,
    "zero_force_ds_cpu_optimizer": _step,
}
_owned_of_zero: Mapping[str, str] = {
    "stage": "set trainer.zero_stage",
    "overlap_comm": _step,
    "compute_grad_norm": _step,
    "offload_optimizer": _optimizer_offload,
    "cpu_offload": _optimizer_offload,
    "cpu_offload_use_pin_memory": _optimizer_offload,
    "offload_param": _parameter_offload,
    "cpu_offload_param": _parameter_offload,
    "zenflow": "optimizer steps would be taken beside later batches",
    "zero_quantized_weights": _lossy,
    "zero_quantized_nontrainable_weights": _lossy,
    "zero_quantized_gradients": _lossy,
}


def refused_settings(table: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each name in `table` that belongs to rollog, with what to do in its place."""
    zero = table.get(_zero, {})
    if not isinstance(zero, dict):
        yield f"trainer.deepspeed.{_zero} = {zero!r} is no table"
        return
    for prefix, names, owned in (("", table, _owned), (f"{_zero}.", zero, _owned_of_zero)):
        for name in sorted(names.keys() & owned.keys()):
            yield f"trainer.deepspeed.{prefix}{name} cannot be set: {owned[name]}; leave it out"
    for path in _paths_of_disks(table):
        yield f"trainer.deepspeed.{path} cannot be set: nothing is kept on disks; leave it out"


def _paths_of_disks(table: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Where a table, however deep, names a place on an NVMe disk."""
    for name, value in table.items():
        path = f"{above}{name}"
        if name == "nvme_path" or (name == "device" and value == "nvme"):
            yield path
        elif isinstance(value, dict):
            yield from _paths_of_disks(value, f"{path}.")
