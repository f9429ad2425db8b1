"""Patches of real bfloat16 updates: how small they are, what they take, and whether every bit comes back.

A publisher stores each version as the rules of chains say: in full, or as a patch of the one before. One reader keeps
up with it. At the end every version is rebuilt once more by a reader that joins then: from the newest full form that
leads to it, all patches since decoded at once. Each result is compared by the sha256 of all tensors.
"""

from __future__ import annotations

import resource
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness.figures import Figure, mean_figure
from benchmarks.weights.stages import (
    Patch,
    Seconds,
    digest,
    encoded,
    patched,
    stages,
    time_coding,
    time_hashing_one_piece,
)
from benchmarks.weights.updates import Tensors, Variant, exported_versions, tensors_of, write_model
from rollog.kernel.versions.chains import StoredForm, VersionPair, cumulative_every, route, why_full
from rollog.kernel.versions.tensors import TensorSpec
from trainer.since_full import ChangesSinceFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.harness.random_model import ModelShape

largest_share = 0.03
_target_rate = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One version after version 0, coded as a patch also where it is stored in full.

    Shares are of all elements, and of the bytes of the full form.
    """

    version: int
    is_full: bool
    changed_share: float
    plain_share: float
    patch_share: float
    num_dense: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CumulativePatch:
    """What several versions change together, stored as one patch; shares as those of a `Step`."""

    num_versions: int
    changed_share: float
    patch_share: float


@dataclass(slots=True, kw_only=True)
class Store:
    """What was published: full forms as files, patches in memory."""

    directory: Path
    forms: list[StoredForm] = field(default_factory=list)
    patches: dict[str, tuple[Patch, Tensors]] = field(default_factory=dict)

    def add_full(self, pair: VersionPair, exported: bytes) -> None:
        """Store a full form."""
        form = StoredForm(pair=pair, name=f"full-{pair.version}", stored_bytes=len(exported))
        (self.directory / form.name).write_bytes(exported)
        self.forms.append(form)

    def add_patch(self, pair: VersionPair, base: VersionPair, patch: Patch, dense: Tensors) -> None:
        """Store a patch of `base`."""
        form = StoredForm(
            pair=pair, name=f"patch-{pair.version}", stored_bytes=stored_bytes(patch, dense), base=base
        )
        self.patches[form.name] = patch, dense
        self.forms.append(form)

    def read(self, forms: Sequence[StoredForm], tensors: Tensors, seconds: Seconds) -> Tensors:
        """The tensors that these forms make of a reader's, which are patched in place."""
        patches = list(forms)
        if patches and patches[0].base is None:
            exported = (self.directory / patches.pop(0).name).read_bytes()
            tensors = {name: tensor.copy() for name, tensor in tensors_of(exported).items()}
        coded = [self.patches[form.name] for form in patches]
        patched(tensors, [patch for patch, _ in coded], [dense for _, dense in coded], seconds)
        return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One variant: its steps, and how many versions a reader rebuilt, rightly and wrongly.

    `cumulative` is None where a full form came before a cumulative patch was due.
    """

    variant: Variant
    full_bytes: int
    steps: list[Step]
    cumulative: CumulativePatch | None
    num_rebuilt: int
    num_unequal: int


def measure_patches(
    *,
    shape: ModelShape,
    rates: Iterable[float],
    optimizer_steps: Iterable[int],
    num_steps: int,
    seed: int,
    on_progress: Callable[[str], None],
) -> tuple[list[Figure], dict[str, object]]:
    """All figures, and every step for a results file."""
    optimizer_steps = tuple(optimizer_steps)
    variants = [
        Variant(learning_rate=rate, optimizer_steps=each) for rate in rates for each in optimizer_steps
    ]
    with tempfile.TemporaryDirectory(prefix="rollog-bench-") as directory:
        model = Path(directory) / "model"
        write_model(model, shape, seed)
        published = [
            _publish(
                variant,
                exported_versions(model, shape, variant, num_steps=num_steps, seed=seed),
                Store(directory=Path(directory)),
                on_progress,
            )
            for variant in variants
        ]
    details = {
        "model_bytes": published[0].full_bytes,
        "largest_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "steps": {each.variant.name: [asdict(step) for step in each.steps] for each in published},
    }
    return [figure for each in published for figure in _figures(each)], details


def stored_bytes(patch: Patch, dense: Tensors) -> int:
    """Bytes of blocks and of tensors that are stored whole."""
    return sum(len(each.block) for each in patch.values()) + sum(tensor.nbytes for tensor in dense.values())


def _publish(
    variant: Variant, exported: Iterable[bytes], store: Store, on_progress: Callable[[str], None]
) -> Published:
    files = iter(exported)
    exported_first = next(files)
    first = base = tensors_of(exported_first)
    cumulative, reader = None, Tensors()
    at = VersionPair(0, digest(base, Seconds()))
    store.add_full(at, exported_first)
    reader = store.read(store.forms, reader, Seconds())
    pairs, steps, num_unequal = [at], [], 0
    for version, data in enumerate(files, start=1):
        new, seconds = tensors_of(data), Seconds()
        pair = VersionPair(version, digest(new, seconds))
        time_hashing_one_piece(data, seconds)
        step = _step(pair, at, base, new, store=store, exported=data, seconds=seconds)
        reader = store.read(route(store.forms, pair, at), reader, seconds)
        num_unequal += digest(reader, Seconds()) != pair.digest
        steps.append(replace(step, seconds=dict(seconds)))
        on_progress(_line(variant, steps[-1]))
        pairs.append(pair)
        base, at = new, pair
        if version == cumulative_every and not any(each.is_full for each in steps):
            cumulative = _cumulative(store, first, new)
    num_unequal += sum(not _joiner_finds(pair, store) for pair in pairs)
    return Published(
        variant=variant,
        full_bytes=sum(tensor.nbytes for tensor in base.values()),
        steps=steps,
        cumulative=cumulative,
        num_rebuilt=len(steps) + len(pairs),
        num_unequal=num_unequal,
    )


def _joiner_finds(pair: VersionPair, store: Store) -> bool:
    """Whether a reader that has nothing rebuilds a version, all patches at once."""
    return digest(store.read(route(store.forms, pair), {}, Seconds()), Seconds()) == pair.digest


def _step(
    pair: VersionPair,
    at: VersionPair,
    base: Tensors,
    new: Tensors,
    *,
    store: Store,
    exported: bytes,
    seconds: Seconds,
) -> Step:
    """Code a version, and store it as the rules say."""
    num_changes, plain_bytes = time_coding(base, new, seconds)
    patch = encoded(base, new, seconds)
    dense = {name: new[name].copy() for name, each in patch.items() if each.form == "dense"}
    patch_bytes = stored_bytes(patch, dense)
    is_full = why_full(pair.version, route(store.forms, at), patch_bytes=patch_bytes) is not None
    if is_full:
        store.add_full(pair, exported)
    else:
        store.add_patch(pair, at, patch, dense)
    full_bytes = sum(tensor.nbytes for tensor in new.values())
    return Step(
        version=pair.version,
        is_full=is_full,
        changed_share=num_changes / sum(tensor.size for tensor in new.values()),
        plain_share=plain_bytes / full_bytes,
        patch_share=patch_bytes / full_bytes,
        num_dense=len(dense),
        seconds={},
    )


def _cumulative(store: Store, first: Tensors, last: Tensors) -> CumulativePatch:
    """All patches of the store as one, made as the trainer makes it."""
    *before, newest = (patch for patch, _ in store.patches.values())
    specs = [TensorSpec(name, "BF16", tensor.shape) for name, tensor in last.items()]
    changes = ChangesSinceFull()
    changes.restart()
    for patch in before:
        changes.begin()
        for spec in specs:
            changes.add(spec, patch[spec.name])
        changes.keep()
    changes.begin(together=True)
    num_bytes = 0
    for spec in specs:
        changes.add(spec, newest[spec.name])
        found = changes.together(spec)
        num_bytes += spec.num_bytes if found.form == "dense" else len(found.block)
    num_changes = sum(int(np.count_nonzero(first[name] != tensor)) for name, tensor in last.items())
    return CumulativePatch(
        num_versions=len(store.patches),
        changed_share=num_changes / sum(tensor.size for tensor in last.values()),
        patch_share=num_bytes / sum(spec.num_bytes for spec in specs),
    )


def _line(variant: Variant, step: Step) -> str:
    form = "full" if step.is_full else f"patch {100 * step.patch_share:.2f} %"
    return f"{variant.name} version {step.version}: {100 * step.changed_share:.2f} % changed, {form}"


def _figures(published: Published) -> list[Figure]:
    steps = published.steps
    prefix = f"weights.patches.{published.variant.name}"
    is_target = published.variant.learning_rate == _target_rate
    return [
        mean_figure(
            f"{prefix}.share",
            "bytes of a patch / full form",
            [step.patch_share for step in steps],
            target=largest_share if is_target else None,
            higher_is_better=False,
        ),
        Figure(
            name=f"{prefix}.largest_share",
            value=max(step.patch_share for step in steps),
            unit="bytes of the largest patch / full form",
            higher_is_better=False,
        ),
        mean_figure(
            f"{prefix}.stored_share",
            "bytes of a version as it is stored, full or patch / full form",
            [1.0 if step.is_full else step.patch_share for step in steps],
            higher_is_better=False,
        ),
        mean_figure(
            f"{prefix}.plain_share",
            "positions as bytes and new values / full form",
            [step.plain_share for step in steps],
            higher_is_better=False,
        ),
        mean_figure(
            f"{prefix}.changed",
            "changed elements / all",
            [step.changed_share for step in steps],
            higher_is_better=False,
        ),
        *(
            _cumulative_figures(prefix, patch, steps[: patch.num_versions])
            if (patch := published.cumulative) is not None
            else ()
        ),
        *(
            _seconds_figure(prefix, stage, timed, published.full_bytes)
            for stage in stages
            # A full form is neither decoded nor applied.
            if (timed := [step for step in steps if stage in step.seconds])
        ),
        Figure(
            name=f"{prefix}.unequal",
            value=published.num_unequal,
            unit=f"of {published.num_rebuilt} versions rebuilt have another sha256",
            target=0,
            higher_is_better=False,
        ),
    ]


def _cumulative_figures(prefix: str, patch: CumulativePatch, steps: Sequence[Step]) -> list[Figure]:
    return [
        Figure(
            name=f"{prefix}.cumulative_changed",
            value=round(patch.changed_share / sum(step.changed_share for step in steps), 3),
            unit=f"elements that differ after {len(steps)} versions / those that each changed",
            higher_is_better=False,
        ),
        Figure(
            name=f"{prefix}.cumulative_share",
            value=round(patch.patch_share / sum(step.patch_share for step in steps), 3),
            unit=f"bytes of one patch of {len(steps)} versions / of a patch of each",
            higher_is_better=False,
        ),
    ]


def _seconds_figure(prefix: str, stage: str, steps: Sequence[Step], num_bytes: int) -> Figure:
    return Figure(
        name=f"{prefix}.seconds.{stage}",
        value=round(fmean(step.seconds[stage] for step in steps), 4),
        unit=f"processor seconds for {num_bytes / 1e6:.0f} MB",
        ideal=round(fmean(step.seconds[f"{stage}.floor"] for step in steps), 4),
        higher_is_better=False,
    )
