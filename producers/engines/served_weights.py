"""Weights that an inference server may load: in one directory, with the digest that the caller has verified.

Of a manifest that digest is the one of its text, from which the digests of its shards follow.

Whoever reaches the server's update call can name any path. The directory is set where the server is started.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from producers.engines.weights_file import check_weights_file
from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.files import check_files, weights_files
from rollog.kernel.versions.manifest import manifest_suffix

if TYPE_CHECKING:
    from collections.abc import Mapping

    from producers.engines.weights_file import ModelTensors

directory_variable = "ROLLOG_SERVED_WEIGHTS"
"""Environment variable of the server: the directory below which weights files lie, or several with `:` between."""


def check_served_file(
    path: str, sha256: str, tensors: ModelTensors, environment: Mapping[str, str] | None = None
) -> Path:
    """The file or manifest at `path` without links, when it is in the directory, fits the model and has the digest.

    Raises WeightsError.
    """
    allowed = (os.environ if environment is None else environment).get(directory_variable)
    if not allowed:
        raise WeightsError(
            f"{directory_variable} is not set in the server's environment: name the directory of the weights there "
            "and start the server again"
        )
    found = Path(path).resolve()
    directories = [Path(directory).resolve() for directory in allowed.split(os.pathsep) if directory]
    if not any(found.is_relative_to(directory) for directory in directories):
        raise WeightsError(
            f"{Path(path).name} is not below {directory_variable} of the server: name the directory in which "
            "the worker has its weights files, which both must read under one path"
        )
    if not found.is_file():
        raise WeightsError(
            f"{found.name} is not there for the server: worker and server must read one directory under one path"
        )
    for file in weights_files(found):
        # A shard stands beside its manifest, but may be a link.
        if not any(file.resolve().is_relative_to(directory) for directory in directories):
            raise WeightsError(f"{file.name} leads out of {directory_variable} of the server")
    check_weights_file(found, tensors)
    if file_digest(found) != sha256:
        raise WeightsError(f"{found.name} has other bytes for the server than the worker has verified")
    if found.suffix == manifest_suffix:
        check_files(found)
    return found


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal. Raises WeightsError where it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be read: {error.strerror or error}") from error
