"""`rollog export`: a run as one portable file, its trained samples as a dataset, or its model as a directory."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollog.cli.options import recorded_run_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.broker.archive_format import ArchiveManifest
    from rollog.run.request import RecordedRunRequest


@click.command()
@recorded_run_options
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--weights",
    type=click.Choice(["all", "first", "none"]),
    default="all",
    show_default=True,
    help="Weights files to put in: `first` is version 0, enough to re-train from; audit looks at all of them.",
)
@click.option(
    "--samples",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the trained samples to this .jsonl or .parquet file instead.",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a version as a Hugging Face model directory instead.",
)
@click.option(
    "--offsets",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the offset and digest of every record instead, to read a mirror of the run with --offset-map.",
)
@click.option(
    "--version",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --model: which version; left out, the newest.",
)
def export(
    *,
    source: RecordedRunRequest,
    file: Path | None,
    weights: str,
    samples: Path | None,
    model: Path | None,
    offsets: Path | None,
    version: int | None,
) -> None:
    """Write RUN, finished or not, to the archive FILE; or only its samples, its model or its offsets.

    An archive is one zip file with every record under its original offset, weights files and a manifest with
    the sha256 of each part; audit, replay and lineage read it with --archive. Of the samples each trained one is a row:
    step, version, reward, advantage, tokens, texts. docs/archive.md describes both. A model directory has
    configuration, tokenizer, weights in shards and a model card; transformers and vLLM load it.

    Consumes all topics of the run and its weights store; produces the file, whole or not at all.
    """
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415  # help needs none of it

    if [file, samples, model, offsets].count(None) != 3:  # noqa: PLR2004 - all but one
        raise ConfigError(
            "name one thing: `rollog export RUN FILE` for an archive, --samples FILE for the samples, --model DIR for "
            "the model, --offsets FILE for the offsets"
        )
    if version is not None and model is None:
        raise ConfigError("--version goes with --model DIR")
    if file is not None:
        _export_archive(source, file, weights)
    elif samples is not None:
        _export_samples(source, samples)
    elif model is not None:
        _export_model(source, model, version)
    elif offsets is not None:
        _export_offsets(source, offsets)


def _export_archive(source: RecordedRunRequest, file: Path, weights: str) -> None:
    from consumers.archive import WeightsChoice, export_archive  # noqa: PLC0415
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    if source.archive is not None:
        raise ConfigError(
            f"--archive {source.archive} is an archive already: copy it, or name a run on a broker"
        )
    with open_run(source) as run:
        manifest = export_archive(run.broker, run.topics, run.store, file, weights=WeightsChoice(weights))
    for line in _archive_lines(manifest, file):
        click.echo(line)


def _archive_lines(manifest: ArchiveManifest, file: Path) -> Sequence[str]:
    partitions = [partition for topic in manifest.topics.values() for partition in topic.partitions]
    return (
        (
            f"run {manifest.run}: {sum(each.num_records for each in partitions)} records of "
            f"{len(manifest.topics)} topics and {len(manifest.weights)} weights files in {file} "
            f"({file.stat().st_size} bytes)"
        ),
        f"ledger head: {manifest.ledger_head or 'none, the ledger has not begun'}",
    )


def _export_offsets(source: RecordedRunRequest, file: Path) -> None:
    from consumers.mirrored import make_offset_map, write_offset_map  # noqa: PLC0415
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    if source.mirror is not None:
        raise ConfigError("--offsets needs the original, whose offsets it writes: leave out --mirror")
    with open_run(source) as run:
        found = make_offset_map(run.broker, run.topics)
    write_offset_map(found, file)
    click.echo(f"run {found.run}: original offsets and digests of {found.num_records} records in {file}")


def _export_samples(source: RecordedRunRequest, file: Path) -> None:
    from consumers.trained_samples import trained_samples, write_samples  # noqa: PLC0415
    from rollog.run.recorded_advantages import RecordedAdvantages  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    with open_run(source) as run:
        rows = trained_samples(run.broker, run.topics, run.store, advantages=RecordedAdvantages(run.settings))
        click.echo(f"run {run.topics.run}: {write_samples(rows, file)} trained samples in {file}")


def _export_model(source: RecordedRunRequest, directory: Path, version: int | None) -> None:
    from rollog.run.model_export import export_model  # noqa: PLC0415
    from rollog.run.recorded_run import open_run  # noqa: PLC0415

    with open_run(source) as run:
        exported = export_model(run, source.common.home.resolve(), directory, version=version)
    facts = exported.facts
    click.echo(
        f"run {facts.run}: version {facts.version} in {directory}: {exported.num_tensors} tensors, "
        f"sha256 {facts.weights_sha256} as the ledger has it"
    )
    click.echo(f"serve it: {_serving_command(directory, exported.tokenizer_folder)}")


def _serving_command(directory: Path, tokenizer_folder: str | None) -> str:
    """The command of the installed vLLM; where there is none, that of the usual build."""
    from producers.engines.vllm import installed_vllm  # noqa: PLC0415
    from rollog.kernel.called import word_for  # noqa: PLC0415
    from rollog.kernel.errors import ConfigError  # noqa: PLC0415
    from rollog.run.model_card import serving_command  # noqa: PLC0415

    python, here = Path(sys.executable), Path.cwd()
    try:
        _, on_cpu = installed_vllm()
    except ConfigError:
        return serving_command(shlex.quote(str(directory)), tokenizer_folder)
    program = python if on_cpu else python.with_name("vllm")
    return serving_command(
        shlex.quote(str(directory)), tokenizer_folder, on_cpu=on_cpu, program=word_for(program, here)
    )
