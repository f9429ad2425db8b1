"""Messages of the RPC between ranks as bytes: a call of a training engine, or its answer.

They are numbers and JSON, nothing to be executed.

A message is a safetensors file. Its tensor `call` holds the name and the arguments as JSON, the others are what is
too large for that. Floating-point numbers survive bit for bit, so that every rank trains the very same batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rollog.kernel.errors import EngineError
from rollog.settings.training import AlgorithmConfig, OptimizerConfig
from schemas import MicroBatch
from schemas.arrays import float32_array, int32_array, uint8_array
from trainer.step.ports import StepSettings, TrainingBatch, TrainingSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from schemas.arrays import Int32Array

    Arrays = dict[str, npt.NDArray[Any]]

_call = "call"
_no_integers = int32_array()
_nothing = -1
"""In place of a number that is not there; those that may be missing count from 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankMessage:
    """A call (the name of an engine's method, `create` or `end`) or an answer (`done`, `failed`).

    `arguments` are values that JSON has.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def encode_message(message: RankMessage) -> bytes:
    """The bytes of a message."""
    header = json.dumps({"name": message.name, "arguments": message.arguments}).encode()
    data: bytes = save({_call: np.frombuffer(header, dtype=np.uint8), **message.arrays})
    return data


def decode_message(data: bytes) -> RankMessage:
    """The message that these bytes are. Raises EngineError for others."""
    try:
        arrays = load(data)
        header = json.loads(arrays.pop(_call).tobytes())
        return RankMessage(name=header["name"], arguments=header["arguments"], arrays=arrays)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"{len(data)} bytes from another rank are no call of a training engine ({error}); "
            "all ranks must run the same version of rollog"
        ) from error


def of_rank(batch: TrainingBatch, rank: int) -> TrainingBatch:
    """The batch as `rank` needs it: of the samples that others train, what denominators and advantages come from."""
    own = {position for planned in batch.plan if planned.rank == rank for position in planned.positions}
    return replace(
        batch,
        samples=tuple(
            sample if position in own else _without_tokens(sample)
            for position, sample in enumerate(batch.samples)
        ),
    )


def batch_message(name: str, batch: TrainingBatch) -> RankMessage:
    """A batch as a message: each field of all samples one after another, beside their lengths."""
    samples = batch.samples
    return RankMessage(
        name=name,
        arguments={
            "plan": [[planned.minibatch, planned.rank, list(planned.positions)] for planned in batch.plan]
        },
        arrays={
            "prompt_token_ids": _joined([sample.prompt_token_ids for sample in samples], "<i4"),
            "token_ids": _joined([sample.token_ids for sample in samples], "<i4"),
            "behaviour_logprobs": _joined([sample.behaviour_logprobs for sample in samples], "<f4"),
            "loss_mask": _joined([sample.loss_mask for sample in samples], "u1"),
            "lags": _joined([_or_empty(sample.lags) for sample in samples], "<i4"),
            "num_prompt": _integers(len(sample.prompt_token_ids) for sample in samples),
            "num_response": _integers(len(sample.token_ids) for sample in samples),
            "num_mask": _integers(len(sample.loss_mask) for sample in samples),
            "num_lags": _integers(len(_or_empty(sample.lags)) for sample in samples),
            "knows_lags": _integers(sample.lags is not None for sample in samples),
            "group": _integers(sample.group for sample in samples),
            "advantage": _numbers(sample.advantage for sample in samples),
            "reward": _numbers(sample.reward for sample in samples),
            "turn_rewards": _numbers(reward for sample in samples for reward in sample.turn_rewards),
            "turn_advantages": _numbers(
                advantage for sample in samples for advantage in sample.turn_advantages
            ),
            "num_turns": _integers(len(sample.turn_rewards) for sample in samples),
            "sample": _integers(_or_none(sample.sample) for sample in samples),
            "num_sample_tokens": _integers(_or_none(sample.num_sample_tokens) for sample in samples),
            "turns": _joined([_or_empty(sample.turns) for sample in samples], "<i4"),
            "num_turns_of_tokens": _integers(len(_or_empty(sample.turns)) for sample in samples),
            "knows_turns": _integers(sample.turns is not None for sample in samples),
        },
    )


def batch_of(message: RankMessage) -> TrainingBatch:
    """The batch of a message that `batch_message` made."""
    arrays = message.arrays
    columns: dict[str, Iterable[Any]] = {
        "prompt_token_ids": _split(arrays["prompt_token_ids"], arrays["num_prompt"]),
        "token_ids": _split(arrays["token_ids"], arrays["num_response"]),
        "behaviour_logprobs": _split(arrays["behaviour_logprobs"], arrays["num_response"]),
        "loss_mask": _split(arrays["loss_mask"], arrays["num_mask"]),
        "lags": _where_known(_split(arrays["lags"], arrays["num_lags"]), arrays["knows_lags"]),
        **{name: arrays[name].tolist() for name in ("group", "advantage", "reward")},
        **{
            name: [tuple(of_turns.tolist()) for of_turns in _split(arrays[name], arrays["num_turns"])]
            for name in ("turn_rewards", "turn_advantages")
        },
        **{
            name: [None if number == _nothing else number for number in arrays[name].tolist()]
            for name in ("sample", "num_sample_tokens")
        },
        "turns": _where_known(_split(arrays["turns"], arrays["num_turns_of_tokens"]), arrays["knows_turns"]),
    }
    return TrainingBatch(
        samples=tuple(
            TrainingSample(**dict(zip(columns, values, strict=True)))
            for values in zip(*columns.values(), strict=True)
        ),
        plan=tuple(
            MicroBatch(minibatch=minibatch, rank=rank, positions=tuple(positions))
            for minibatch, rank, positions in message.arguments["plan"]
        ),
    )


def settings_arguments(settings: StepSettings) -> dict[str, Any]:
    """The settings of an engine's steps as JSON has them."""
    return {
        "algorithm": settings.algorithm.model_dump(mode="json"),
        "optimizer": settings.optimizer.model_dump(mode="json"),
        "num_optimizer_steps": settings.num_optimizer_steps,
    }


def settings_of(arguments: dict[str, Any]) -> StepSettings:
    """The settings that `settings_arguments` made."""
    return StepSettings(
        algorithm=AlgorithmConfig.model_validate(arguments["algorithm"]),
        optimizer=OptimizerConfig.model_validate(arguments["optimizer"]),
        num_optimizer_steps=arguments["num_optimizer_steps"],
    )


def _without_tokens(sample: TrainingSample) -> TrainingSample:
    return replace(
        sample,
        prompt_token_ids=_no_integers,
        token_ids=_no_integers,
        behaviour_logprobs=float32_array(),
        lags=None,
    )


def _or_empty(array: Int32Array | None) -> Int32Array:
    return _no_integers if array is None else array


def _or_none(number: int | None) -> int:
    return _nothing if number is None else number


def _joined(arrays: Sequence[npt.NDArray[Any]], type_code: str) -> npt.NDArray[Any]:
    joined: npt.NDArray[Any] = np.concatenate([*arrays, uint8_array()]).astype(type_code)
    return joined


def _where_known(
    arrays: Sequence[npt.NDArray[Any]], is_known: npt.NDArray[Any]
) -> list[npt.NDArray[Any] | None]:
    return [array if known else None for array, known in zip(arrays, is_known, strict=True)]


def _integers(values: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.array(list(values), dtype="<i8")


def _numbers(values: Iterable[float]) -> npt.NDArray[np.float64]:
    return np.array(list(values), dtype="<f8")


def _split(joined: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
    return np.split(joined, np.cumsum(lengths)[:-1]) if len(lengths) else []
