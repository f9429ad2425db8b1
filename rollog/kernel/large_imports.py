"""Imports of large libraries, made faster, and kept out of the way of the garbage collector."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def large_imports() -> Iterator[None]:
    """Look for no garbage meanwhile, nor ever again in what is there then.

    What an import makes stays, and each look walks over all of it in vain: Torch, transformers and DeepSpeed are
    imported a tenth faster so, and a look over all that vLLM imports stops every thread for half a second.
    """
    was_enabled, num_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_modules:
            gc.freeze()
        if was_enabled:
            gc.enable()
