"""The policy: a Hugging Face causal language model that answers with log-probabilities of response tokens.

Shapes: B samples of a micro-batch, S rows of a forward pass, T positions of a row, R response positions, N trained
tokens, V vocabulary.

The output layer runs only where a trained token is predicted: N rows instead of S * T, and of these, unless a run asks
for all logits at once, a chunk at a time (`token_logprobs.py`). With large vocabularies that decides how much memory a
step takes.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.utils import logging as transformers_logging

from rollog.kernel.errors import DataError, EngineError, WeightsError
from rollog.kernel.versions.files import adapter_at, merged_tensors, weights_files
from trainer.model.arithmetic import pin_instructions
from trainer.model.output_layer import OutputComputation, computing, output_layer
from trainer.model.sharing import unshared, whole_shape
from trainer.model.token_logprobs import LogprobSettings, token_logprobs
from trainer.model.varlen_attention import attends_without_masks, keywords_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

    from rollog.settings.training import Reproducible
    from trainer.model.sharing import Sharing

dtypes: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
all_at_once = OutputComputation()
"""The model's own way."""


class Policy(nn.Module):
    """Wraps a causal language model; `forward` gives log pi of the trained tokens at the sampling temperature.

    With a value head a linear layer on the last hidden states, zero at first, gives values beside them. It is trained
    with the model and saved in checkpoints; the model's own weights, which are published, are without it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float,
        *,
        with_value_head: bool = False,
        computation: OutputComputation = all_at_once,
    ) -> None:
        super().__init__()
        self.model = model
        self.computation = computation
        self.value_head: nn.Linear | None = None
        self._temperature = temperature
        self._source_N: Tensor | None = None
        self._hidden_1NH: Tensor | None = None
        layer = output_layer(model)
        layer.register_forward_pre_hook(self._select_trained)
        if with_value_head:
            self.value_head = _zero_head(layer)

    def forward(
        self,
        input_ids_ST: Tensor,
        source_N: Tensor,
        target_N: Tensor,
        response_N: Tensor,
        mask_BR: Tensor,
        *,
        position_ids_ST: Tensor | None = None,
        with_entropy: bool = False,
        with_values: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The entries of `trainer.step.forward.PolicyOutputs`, each (B, R).

        Raises EngineError for values where there is no value head.
        """
        self._source_N = source_N
        inputs: dict[str, Any] = {"input_ids": input_ids_ST}
        if position_ids_ST is not None:
            inputs["position_ids"] = position_ids_ST
            if attends_without_masks(self.model):
                inputs |= keywords_of(position_ids_ST)
        answered = self._in_chunks if self.computation.chunk_tokens else self._all_at_once
        logprobs_N, entropies_N = answered(inputs, target_N, with_entropy=with_entropy)
        hidden_1NH, self._source_N, self._hidden_1NH = self._hidden_1NH, None, None
        values_BR = _placed(self._values(hidden_1NH), response_N, mask_BR) if with_values else None
        return (
            _placed(logprobs_N, response_N, mask_BR),
            None if entropies_N is None else _placed(entropies_N, response_N, mask_BR),
            values_BR,
        )

    @contextmanager
    def at_temperature(self, temperature: float) -> Iterator[None]:
        """Log pi at this temperature while the block lasts."""
        before, self._temperature = self._temperature, temperature
        try:
            yield
        finally:
            self._temperature = before

    def _in_chunks(
        self, inputs: dict[str, Any], target_N: Tensor, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        layer: Any = output_layer(self.model)
        settings = LogprobSettings(
            chunk_tokens=self.computation.chunk_tokens,
            temperature=self._temperature,
            transform=self.computation.transform,
            with_entropy=with_entropy,
            dtype=self.computation.dtype,
        )

        def answer(hidden_1NH: Tensor) -> Tensor:
            return token_logprobs(hidden_1NH[0], layer.weight, layer.bias, target_N, settings)[None]

        with computing(layer, answer) as outputs:
            self.model(**inputs, use_cache=False)
        outputs_NK = outputs[0][0]
        return outputs_NK[:, 0], outputs_NK[:, 1] if with_entropy else None

    def _all_at_once(
        self, inputs: dict[str, Any], target_N: Tensor, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        logits_NV = self._logits(inputs)
        if self._temperature != 1.0:
            logits_NV = logits_NV / self._temperature
        logsums_N = logits_NV.logsumexp(dim=1)
        logprobs_N = logits_NV.gather(1, target_N[:, None])[:, 0] - logsums_N
        if not with_entropy:
            return logprobs_N, None
        return logprobs_N, logsums_N - (logits_NV.softmax(dim=1) * logits_NV).sum(dim=1)

    def _logits(self, inputs: dict[str, Any]) -> Tensor:
        layer: Any = output_layer(self.model)
        dtype = self.computation.dtype

        def wide(hidden_1NH: Tensor) -> Tensor:
            bias = None if layer.bias is None else layer.bias.to(dtype)
            return linear(hidden_1NH.to(dtype), layer.weight.to(dtype), bias)

        with nullcontext() if dtype is None else computing(layer, wide):
            logits_NV: Tensor = self.model(**inputs, use_cache=False).logits[0].float()
        return logits_NV

    def _values(self, hidden_1NH: Tensor | None) -> Tensor:
        if self.value_head is None or hidden_1NH is None:
            raise EngineError(
                "this policy has no value head: it was not started with algorithm.advantage = 'gae'"
            )
        values: Tensor = self.value_head(hidden_1NH)
        return values[0, :, 0].float()

    def _select_trained(self, _layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._source_N is None:
            return inputs
        hidden_1NH = inputs[0].flatten(0, 1).index_select(0, self._source_N)[None]
        self._hidden_1NH = hidden_1NH
        return (hidden_1NH, *inputs[1:])


def compute_deterministically(num_threads: int, reproducible: Reproducible = "machine") -> None:
    """Have this process compute on so many threads, and give the same bits for the same work.

    Call it before anything is computed: cuBLAS and the CPU's libraries read their variables once. Raises EngineError as
    `pin_instructions` does.
    """
    pin_instructions(reproducible)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def load_model(
    model_path: str, weights_path: Path | None, dtype: str, sharing: Sharing = unshared
) -> PreTrainedModel:
    """A causal language model without dropout, with the weights of `weights_path` where given.

    These are read into it one tensor after another, so no more memory is taken than the model and one tensor; where
    ranks share it out, than a part of the model and one layer.

    Raises:
        DataError: the model cannot be loaded.
        WeightsError: names or shapes in `weights_path` do not fit.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model: PreTrainedModel
    try:
        if weights_path is None:
            with sharing.loading():
                model = AutoModelForCausalLM.from_pretrained(
                    model_path, dtype=dtypes[dtype], attn_implementation="sdpa"
                )
        else:
            model = _without_values(model_path, dtype, sharing)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"model.path = {model_path!r} cannot be loaded as a causal language model ({error}); "
            "give a directory with config.json and safetensors files, or a name known to Hugging Face"
        ) from error
    if weights_path is not None:
        load_weights(model, weights_path, sharing=sharing)
    sharing.place(model)
    _without_dropout(model)
    return model


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Have the model compute the activations of each layer again in the backward pass. Raises DataError."""
    if not model.supports_gradient_checkpointing:
        raise DataError(
            f"trainer.activation_checkpointing = true: {type(model).__name__} cannot compute its layers twice; "
            "set it to false"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})


def load_weights(
    model: nn.Module,
    path: Path,
    targets: Mapping[str, Tensor] | None = None,
    *,
    sharing: Sharing = unshared,
) -> None:
    """Replace all weights of `model` by published ones, a file or a manifest, in which tied tensors appear once.

    `targets` are those to replace by their published names, left out all of the model. Matrices of adapters that are
    not among them are passed over. Raises WeightsError; where names or shapes do not fit, before anything is replaced.
    """
    targets = dict(untied_tensors(model)) if targets is None else targets
    expected = {name: whole_shape(tensor) for name, tensor in targets.items()}
    try:
        adapter = adapter_at(path)
        passed_over = set() if adapter is None else adapter.tensor_names - targets.keys()
        given = {
            name: shape for name, shape in merged_tensors(path, _shapes_in).items() if name not in passed_over
        }
        if expected != given:
            differing = sorted(set(expected.items()) ^ set(given.items()))
            raise WeightsError(f"weights {path} do not fit the model; differing tensors: {differing[:6]}")
        with torch.no_grad():
            for file, name in _stored_names(path):
                if name not in targets:
                    continue
                with sharing.writing(targets[name]) as is_mine:
                    if is_mine:
                        targets[name].copy_(_stored_tensor(file, name))
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"weights {path} cannot be read: {error}") from error


def _without_values(model_path: str, dtype: str, sharing: Sharing) -> PreTrainedModel:
    """A model whose weights are memory that nothing was written to; what is no weight is computed as always."""
    config = AutoConfig.from_pretrained(model_path)
    with no_init_weights(), sharing.building():
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtypes[dtype], attn_implementation="sdpa"
        )
    model.tie_weights()  # which belongs to what was left out
    built: PreTrainedModel = model
    return built


def _shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(file, framework="pt") as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118


def _stored_names(path: Path) -> Iterator[tuple[Path, str]]:
    for file in weights_files(path):
        for name in _shapes_in(file):
            yield file, name


def _stored_tensor(file: Path, name: str) -> Tensor:
    # Opened anew each time: what was read of a file stays in this process's memory until it is closed.
    with safe_open(file, framework="pt") as opened:
        tensor: Tensor = opened.get_tensor(name)
        return tensor


def untied_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by name, each tensor under its first name only."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def model_config_json(model: PreTrainedModel) -> str:
    """The model's configuration without the place it was loaded from."""
    settings: dict[str, Any] = model.config.to_dict()
    settings.pop("_name_or_path", None)
    return json.dumps(settings, sort_keys=True, default=str)


def _zero_head(output_layer: nn.Module) -> nn.Linear:
    """A linear layer from the output layer's inputs to one number, zero at first."""
    weight = output_layer.weight
    assert isinstance(weight, Tensor)
    head = nn.Linear(whole_shape(weight)[1], 1, device=weight.device, dtype=weight.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _placed(values_N: Tensor, response_N: Tensor, mask_BR: Tensor) -> Tensor:
    """Values of trained tokens at their places, 0 elsewhere."""
    flat = values_N.new_zeros(mask_BR.numel())
    return flat.index_copy(0, response_N, values_N).view_as(mask_BR)


def _without_dropout(model: nn.Module) -> None:
    """Training evaluates the very distribution that was sampled from, so nothing is dropped."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
