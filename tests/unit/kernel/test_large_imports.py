"""The garbage collector rests while large libraries are imported, and only then."""

from __future__ import annotations

import gc

import pytest

from rollog.kernel.large_imports import large_imports


def import_in_vain() -> None:
    with large_imports():
        assert not gc.isenabled()
        raise ModuleNotFoundError


def test_garbage_is_looked_for_again_afterwards_whatever_came() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_in_vain()
    assert gc.isenabled()


def test_who_looks_for_none_goes_on_so() -> None:
    gc.disable()
    try:
        with large_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
