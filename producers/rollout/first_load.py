"""Whether an engine computes what the trainer computes: asked once, of the first weights that it has loaded.

Weights that came byte for byte can still be laid out wrongly by an engine's kernels, quantised ones above all; nothing
fails then, and the log-probabilities are those of another model. So a notice has a probe, a short sequence with the
trainer's log-probabilities, and a worker compares its own before it starts anything. Where the first weights are
version 0, it does so once more: later ones come as patches or adapters, and those of version 0 do nothing yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollog.kernel.errors import EngineDied, EngineError, LogprobsOff
from rollog.kernel.logs import get_logger

if TYPE_CHECKING:
    from producers.engines.ports import Engine
    from schemas import WeightsProbe, WeightVersion
    from schemas.arrays import Float32Array

_log = get_logger("rollout")
_least_tokens = 2
_most_tokens = 1024
"""Of a probe that is looked at: anybody may be able to write a notice."""
_far_off = 4.0
"""Times the tolerance: what few tokens alone may be."""
_largest_share_far_off = 0.05


class FirstLoad:
    """Compares the first weights that one engine loads, after version 0 the next ones, too; then it has nothing to do.

    `tolerance` is the largest mean absolute difference, in nats; 0 compares nothing.
    """

    def __init__(self, engine: Engine, tolerance: float) -> None:
        self._engine = engine
        self._tolerance = tolerance
        self._is_due = tolerance > 0

    async def check(self, notice: WeightVersion) -> None:
        """Compare a version that is loaded, while no request runs. Raises LogprobsOff; EngineDied.

        A version without a probe, as releases before wrote them, leaves that to the next one.
        """
        if not self._is_due:
            return
        probe = _readable(notice.probe, self._engine.max_context_tokens)
        own = None if probe is None else await self._own(probe)
        if probe is None or own is None:
            return
        self._is_due = notice.version == 0
        differences = np.abs(np.asarray(probe.logprobs) - own[1:].astype(np.float64))
        mean, share = float(differences.mean()), float((differences > _far_off * self._tolerance).mean())
        _log.info(
            "log-probabilities compared with the trainer's",
            version=notice.version,
            mean_difference=round(mean, 5),
            largest_difference=round(float(differences.max()), 5),
            num_tokens=len(differences),
        )
        # Not written as the opposite: a NaN is off.
        if not (mean <= self._tolerance and share <= _largest_share_far_off):
            raise LogprobsOff(
                f"{self._engine.name} {self._engine.engine_version} computes other log-probabilities for version "
                f"{notice.version} than the trainer: {mean:.3g} nats apart in the mean of {len(differences)} tokens, "
                f"{100 * share:.0f} % of them more than {_far_off * self._tolerance:g} apart; "
                f"{self._tolerance:g} is allowed (rollout.first_load_tolerance). The weights came byte for byte: the "
                "engine lays them out or computes them wrongly on this device. Try another release of it, other "
                "rollout.engine_args, or no quantisation"
            )

    async def _own(self, probe: WeightsProbe) -> Float32Array | None:
        try:
            own = await self._engine.prompt_logprobs(probe.token_ids, "first-load")
        except EngineDied:
            raise
        except EngineError as error:
            _log.warning("log-probabilities cannot be compared with the trainer's", error=str(error))
            return None
        if own is None:
            # It is a property of the engine.
            self._is_due = False
            _log.info("log-probabilities are not compared: this engine gives none", engine=self._engine.name)
        return own


def _readable(probe: WeightsProbe | None, max_context_tokens: int) -> WeightsProbe | None:
    """As much of a probe as fits the engine; None where there is none that can be one."""
    if probe is None or len(probe.logprobs) != len(probe.token_ids) - 1:
        return None
    num_tokens = min(len(probe.token_ids), max_context_tokens - 1)
    if not _least_tokens <= num_tokens <= _most_tokens or min(probe.token_ids) < 0:
        return None
    # Tokens behind the others change nothing of theirs.
    return type(probe)(token_ids=probe.token_ids[:num_tokens], logprobs=probe.logprobs[: num_tokens - 1])
