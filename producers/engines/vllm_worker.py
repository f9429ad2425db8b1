"""The part of the vLLM engine that runs inside vLLM's own process, next to the model.

vLLM imports this module there before it builds the model, which is when it has to act: it ties the process to
its parent, and keeps the CPU backend from copying linear weights into packed buffers. Such copies would go on
being used after the parameters were overwritten, for a tied output layer without any error.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform

from producers.engines.changed_tensors import changed_tensors, not_held, read_tensors, tensor_digests
from producers.engines.mapped_tensors import MappedTensors
from producers.engines.served_weights import check_served_file
from producers.engines.weights_file import ModelTensors, model_tensors
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.files import files_of, manifest_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from producers.engines.changed_tensors import ReadTensors
    from rollog.kernel.versions.identity import TensorDigest
    from rollog.kernel.versions.manifest import Manifest

_pr_set_pdeathsig = 1


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    # The parent may have gone before the kernel was asked; no signal would come any more.
    if os.getppid() != parent.pid:
        os.kill(os.getpid(), signal.SIGKILL)


def _keep_weights_in_place() -> None:
    if not current_platform.is_cpu():
        return
    from vllm import _custom_ops  # noqa: PLC0415  # CPU only
    from vllm.model_executor.layers import utils as linear_kernels  # noqa: PLC0415

    # vLLM has no settings for these two.
    _custom_ops._supports_onednn = False  # noqa: SLF001
    linear_kernels.check_cpu_sgl_kernel = _never


def _never(*_: object) -> bool:
    return False


_die_with_parent()
_keep_weights_in_place()


class WeightLoader:
    """Mixed into vLLM's worker; its methods are called with `collective_rpc`."""

    model_runner: Any
    _rollog_held: Mapping[str, TensorDigest] = MappingProxyType({})
    """Of the version that the model holds; nothing where a load failed, or the version was a single file."""
    _rollog_files: MappedTensors | None = None

    def rollog_load_weights(self, path: str, names: Sequence[str], dense: bool, merged: bool = True) -> int:
        """Overwrite the model's parameters by the named tensors of a version, a safetensors file or a manifest.

        Tensors that the model holds already are left out, unless `dense`. Adapters are `merged` into their layers, or
        left out. vLLM copies each tensor to its place by
        itself, a part of a fused parameter (`qkv_proj`, `gate_up_proj`) too, so the others stay as they are. Returns
        the bytes of those that were handed over.
        """
        model, version = self.model_runner.get_model(), Path(path)
        held, self._rollog_held = {} if dense else self._rollog_held, {}
        manifest = manifest_at(version)
        adapter = manifest.adapter if manifest is not None and merged else None
        digests = tensor_digests(manifest, merged=merged)
        with self._rollog_opened(version, manifest) as read:
            passed = _Counted(changed_tensors(not_held(names, digests, held), read, adapter))
            model.load_weights(passed)
        packed = [name for name, parameter in model.named_parameters() if parameter.numel() == 0]
        if packed:
            raise RuntimeError(
                f"this vLLM build packed {len(packed)} parameters ({packed[0]} ...) and would go on using the "
                "old weights"
            )
        self._rollog_held = digests
        return passed.num_bytes

    def _rollog_opened(self, version: Path, manifest: Manifest | None) -> AbstractContextManager[ReadTensors]:
        if self._rollog_files is None:
            self._rollog_files = MappedTensors()
        return self._rollog_files.opened(version, manifest)

    def rollog_left_out(self, adapter: int) -> list[str]:
        """Layers of an adapter that vLLM was given, and for which it computes nothing here.

        It says that in its log at most. Fused layers are named as such.
        """
        manager = self.model_runner.lora_manager._adapter_manager  # noqa: SLF001 - there is no public way
        return sorted(manager.get_adapter(adapter).loras.keys() - manager.modules.keys())


class _Counted:
    """Tensors on their way to a model."""

    def __init__(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._tensors = tensors
        self.num_bytes = 0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors:
            self.num_bytes += tensor.nbytes
            yield name, tensor


class ServedWeightLoader(WeightLoader):
    """The same in a server that others start (`vllm serve --worker-extension-cls`), called through /collective_rpc.

    Files are read from one directory only, which the server's environment names, and only with the digest that the
    caller has verified. Everything answered is a JSON object.
    """

    model_config: Any
    _rollog_mark: str = ""
    _rollog_tensors: ModelTensors | None = None

    def _rollog_opened(self, version: Path, manifest: Manifest | None) -> AbstractContextManager[ReadTensors]:
        """Nothing stays mapped: the server outlives its workers, whose files are deleted when they leave."""
        return nullcontext(partial(read_tensors, files_of(version, manifest)))

    def rollog_describe(self) -> dict[str, Any]:
        """What the engine on the other side compares with its settings."""
        config = self.model_config
        return {
            "model": config.hf_config.to_dict() | {"dtype": str(config.dtype).removeprefix("torch.")},
            "max_context_tokens": config.max_model_len,
            "logprobs_mode": str(config.logprobs_mode),
        }

    def rollog_load(self, path: str, sha256: str, mark: str) -> dict[str, str]:
        """Overwrite the weights by a file; `mark` names what is loaded from here on. Says what was refused, and why."""
        was_loaded, self._rollog_mark = bool(self._rollog_mark), ""
        try:
            if self._rollog_tensors is None:
                self._rollog_tensors = model_tensors(self.model_config.model)
            checked = check_served_file(path, sha256, self._rollog_tensors)
            self.rollog_load_weights(str(checked), list(self._rollog_tensors.required), dense=not was_loaded)
        except (WeightsError, OSError, RuntimeError, ValueError) as error:
            return {"refused": f"{type(error).__name__}: {error}"}
        self._rollog_mark = mark
        return {"mark": mark}

    def rollog_loaded(self) -> dict[str, str]:
        """The mark of the weights that were loaded last; empty where there are none, or a load failed."""
        return {"mark": self._rollog_mark}
