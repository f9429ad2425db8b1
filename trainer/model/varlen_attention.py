"""Attention over packed rows without a mask: each sample is a sequence of its own to the kernel.

Packed rows need a mask of T x T for each row in PyTorch's ordinary attention, and with one it may not take its fastest
kernel. `torch.nn.attention.varlen` takes the places where sequences begin instead: no mask is held, and nothing is
computed between samples. It exists on GPUs in 16 bits; elsewhere rows are attended to under a mask, as ever, with the
same bits as ever.

Shapes: S rows of a forward pass, T positions of a row, H heads, G heads of keys and values, D their width, Q sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rollog.kernel.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor, nn

name = "rollog_varlen"
_widest_head = 256
_least_capability = (8, 0)
_unknown_to_kernel = ("softcap", "s_aux", "position_bias", "head_mask")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """Where sequences begin in the flattened (S, T) grid and the last ends, (Q + 1) int32, and the longest's tokens."""

    begins: Tensor
    longest: int


def sequences_of(position_ids_ST: Tensor) -> Sequences:
    """The sequences of packed rows: each begins where positions do; padding at the end of a row is one, too."""
    flat = position_ids_ST.flatten()
    begins = torch.nonzero(flat == 0)[:, 0]
    ends = torch.tensor([flat.numel()], device=flat.device)
    return Sequences(begins=torch.cat((begins, ends)).to(torch.int32), longest=int(flat.max()) + 1)


def attend_without_masks(model: PreTrainedModel) -> str | None:
    """Have `model` attend so on devices that can.

    Returns why it cannot, for a model whose attention the kernel does not compute; that model is left as it is.
    """
    config = model.config.get_text_config()
    reason = None
    if not model._supports_flash_attn:  # noqa: SLF001 - what transformers itself asks before it drops the mask
        reason = "its attention is not defined without a mask"
    elif getattr(config, "attn_logit_softcapping", None):
        reason = "it caps scores softly"
    elif (width := _head_width(config)) > _widest_head:
        reason = f"its heads are {width} wide, the kernel takes at most {_widest_head}"
    elif getattr(config, "v_head_dim", None):
        reason = "its values are not as wide as its keys"
    if reason is None:
        model.set_attn_implementation(name)
    return reason


def attends_without_masks(model: nn.Module) -> bool:
    """Whether `attend_without_masks` was called and taken."""
    return isinstance(model, PreTrainedModel) and bool(model.config._attn_implementation == name)  # noqa: SLF001 - there is no public name


def keywords_of(position_ids_ST: Tensor) -> dict[str, Any]:
    """What such a model's forward takes beside packed rows; names are those of transformers' FlashAttentionKwargs."""
    sequences = sequences_of(position_ids_ST)
    begins, longest = sequences.begins, sequences.longest
    return {
        "cu_seq_lens_q": begins,
        "cu_seq_lens_k": begins,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def attend(
    query_SHTD: Tensor,
    key_SGTD: Tensor,
    value_SGTD: Tensor,
    sequences: Sequences,
    *,
    scale: float | None,
    window: int | None,
    kernel: Any = varlen_attn,
) -> Tensor:
    """Causal attention of each sequence over itself, (S, T, H, D).

    Args:
        query_SHTD: queries.
        key_SGTD: keys; H is a multiple of G.
        value_SGTD: values.
        sequences: of the flattened (S, T) grid.
        scale: scores are multiplied by it; None is 1 / sqrt(D).
        window: positions that a position sees, itself included; None is all before it.
        kernel: `torch.nn.attention.varlen.varlen_attn` or what computes the same.
    """
    num_rows, num_heads, width, head_width = query_SHTD.shape
    groups = num_heads // key_SGTD.shape[1]
    flat = [
        tensor.transpose(1, 2).reshape(num_rows * width, num_heads, head_width)
        for tensor in (query_SHTD, repeat_kv(key_SGTD, groups), repeat_kv(value_SGTD, groups))
    ]
    begins, longest = sequences.begins, sequences.longest
    attended: Tensor = kernel(
        *flat,
        begins,
        begins,
        longest,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
    )
    return attended.view(num_rows, width, num_heads, head_width)


def can_attend(device: torch.device | str, dtype: torch.dtype) -> bool:
    """Whether the kernel takes tensors of this type on this device."""
    device = torch.device(device)
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= _least_capability
    )


def _head_width(config: Any) -> int:
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _mask(*, device: torch.device | str, dtype: torch.dtype, **keywords: Any) -> Tensor | None:
    """A mask function of transformers."""
    if can_attend(device, dtype):
        return None
    return sdpa_mask(device=device, dtype=dtype, **keywords)


def _attention(  # noqa: PLR0917 - transformers' signature
    module: nn.Module,
    query_SHTD: Tensor,
    key_SGTD: Tensor,
    value_SGTD: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers."""
    if not can_attend(query_SHTD.device, query_SHTD.dtype):
        attended_STHD, _ = sdpa_attention_forward(
            module, query_SHTD, key_SGTD, value_SGTD, attention_mask, scaling=scaling, **keywords
        )
        return attended_STHD, None
    if unknown := [key for key in _unknown_to_kernel if keywords.get(key) is not None]:
        raise EngineError(
            f"variable-length attention does not compute {', '.join(unknown)} of {type(module).__name__}; set "
            'trainer.packed_attention = "masked"'
        )
    sequences = _given(query_SHTD, keywords)
    window = keywords.get("sliding_window")
    return attend(query_SHTD, key_SGTD, value_SGTD, sequences, scale=scaling, window=window), None


def _given(query_SHTD: Tensor, keywords: dict[str, Any]) -> Sequences:
    """The sequences of packed rows; without any, each row is one."""
    begins = keywords.get("cu_seq_lens_q")
    if begins is not None:
        return Sequences(begins=begins, longest=keywords["max_length_q"])
    num_rows, _, width, _ = query_SHTD.shape
    every_row = torch.arange(num_rows + 1, dtype=torch.int32, device=query_SHTD.device)
    return Sequences(begins=every_row * width, longest=width)


AttentionInterface.register(name, _attention)
AttentionMaskInterface.register(name, _mask)
