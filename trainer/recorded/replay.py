"""Replay: train a recorded run once more and say, step by step, whether it gives what was published.

Consumes a recorded run and, to begin with, one of its checkpoints; needs no rollout worker. Produces comparisons and
nothing else: no transactional id is taken, no offset committed, no record or file of the run written. On a crash it
is done again.

Equal means equal bytes: the same sha256, on as many ranks. Distances are measured where it differs, and never make a
step equal; nor is one ever equal that was trained on another number of ranks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from consumers.named_weights import read_named_weights
from rollog.kernel.errors import ConfigError, WeightsError
from rollog.kernel.logs import get_logger
from trainer.recorded.distances import weights_distance
from trainer.recorded.redo import redo_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consumers.named_weights import NamedWeights
    from trainer.engines.ports import TrainingEngine
    from trainer.recorded.distances import WeightsDistance
    from trainer.recorded.history import History
    from trainer.recorded.redo import Recording

log = get_logger("replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """One step replayed beside the recorded one. `distance` is None where weights agree or no file is left.

    `ranks` are those it was trained on when it was recorded, and here.
    """

    version: int
    weights_sha256: str
    recorded_sha256: str
    losses: tuple[float, ...]
    recorded_losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    recorded_gradient_norms: tuple[float, ...]
    distance: WeightsDistance | None = None
    ranks: tuple[int, int] = (1, 1)

    @property
    def differing(self) -> tuple[str, ...]:
        """What is not as it was recorded, of the number of ranks, weights, loss and gradient norm."""
        pairs: dict[str, tuple[object, object]] = {
            "ranks": self.ranks,
            "weights": (self.weights_sha256, self.recorded_sha256),
            "loss": (self.losses, self.recorded_losses),
            "gradient norm": (self.gradient_norms, self.recorded_gradient_norms),
        }
        return tuple(name for name, (here, recorded) in pairs.items() if here != recorded)

    @property
    def loss_difference(self) -> float | None:
        """Largest difference of an optimizer step's loss; None where their number differs."""
        return largest_difference(self.losses, self.recorded_losses)

    @property
    def gradient_norm_difference(self) -> float | None:
        """Largest difference of an optimizer step's gradient norm; None where their number differs."""
        return largest_difference(self.gradient_norms, self.recorded_gradient_norms)

    def figures(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            **asdict(self),
            "differing": list(self.differing),
            "loss_difference": self.loss_difference,
            "gradient_norm_difference": self.gradient_norm_difference,
        }


def replay_steps(engine: TrainingEngine, recording: Recording, versions: range) -> Iterator[ReplayedStep]:
    """Replay the steps to `versions` on an engine that stands at the version before them.

    After a step that differs the next ones begin with the weights trained here, not with the published ones, whose
    optimizer state is not recorded: differences add up.
    """
    ledger = recording.history.state
    ranks = (recording.genesis.world_size, engine.describe().world_size)
    named = read_named_weights(recording.broker, recording.topics, ledger.weights)
    for step in redo_steps(engine, recording, versions):
        expected = ledger.weights[step.version]
        sha256 = step.weights_sha256
        yield ReplayedStep(
            version=step.version,
            weights_sha256=sha256,
            recorded_sha256=expected,
            losses=step.result.losses,
            recorded_losses=step.recorded.losses,
            gradient_norms=step.result.gradient_norms,
            recorded_gradient_norms=step.recorded.gradient_norms,
            distance=None if sha256 == expected else _distance(engine, recording, step.version, named),
            ranks=ranks,
        )


def recorded_span(history: History, begin: int, end: int | None) -> tuple[int, int]:
    """The versions between which recorded steps are wanted, the last one without `end`. Raises ConfigError."""
    newest = history.state.version
    if end is not None and end > newest:
        raise ConfigError(
            f"version {end}: the run has versions 0 to {newest}; name one of these, or none for all"
        )
    last = newest if end is None else end
    is_within = 0 <= begin < last <= newest
    if not is_within or not history.steps.keys() & set(range(begin + 1, last + 1)):
        raise ConfigError(
            f"versions {begin} to {last}: there is no recorded step between them; the run has versions 0 to {newest}, "
            "and the first is to be smaller than the second"
        )
    return begin, last


def largest_difference(here: Sequence[float], there: Sequence[float]) -> float | None:
    """Largest |a - b| of two series; None where they are not of one length."""
    if len(here) != len(there):
        return None
    return max((abs(a - b) for a, b in zip(here, there, strict=True)), default=0.0)


def _distance(
    engine: TrainingEngine, recording: Recording, version: int, named: NamedWeights
) -> WeightsDistance | None:
    """How far the engine is from the published weights; None where these are pruned or lost."""
    try:
        published = recording.store.fetch(named.of(version), recording.downloads)
        return weights_distance(engine.export_weights, published)
    except WeightsError as error:
        log.warning("published weights cannot be compared", version=version, error=error)
        return None
