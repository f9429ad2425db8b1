"""Records of the `weights` topic: that a policy version exists and where its weights are, and that versions may go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsBase:
    """The version that another one is stored as changes of; `name` is that of its manifest, empty where not said."""

    version: int
    sha256: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsProbe:
    """Log-probabilities that a version gives to a sequence: of each token after the first, in nats, at temperature 1.

    The trainer computed them. Whoever loads the version elsewhere can see whether it computes the same.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """A committed policy version. `name` is a file name inside the run's weights store, never a path.

    | `format` | `sha256` | `name` | `num_bytes` |
    | --- | --- | --- | --- |
    | `safetensors` | of the one file | of the file | of the file |
    | `manifest-1` | the content digest of the tensors | of the manifest | of the tensors |

    `manifest_sha256` is that of the manifest's text; `stored_bytes` are those of the files that it names and its own.
    `base` is None for a version that is stored in full, `probe` where the trainer computes no log-probabilities.
    """

    version: int
    sha256: str
    name: str
    num_bytes: int
    format: str = "safetensors"
    manifest_sha256: str = ""
    base: WeightsBase | None = None
    stored_bytes: int = 0
    probe: WeightsProbe | None = None

    @property
    def digest(self) -> str:
        """The 16 hexadecimal digits that segments carry."""
        return self.sha256[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPruned:
    """The files of these versions, ascending, may be gone: the run keeps them no longer.

    It stands on the log before the first file is deleted. A later notice of a version stands for files that are there.
    """

    versions: tuple[int, ...]
