"""Global random numbers that belong to one episode, for packages that draw from the module `random` or from numpy's.

Episodes share a process. Without this, what one draws would depend on what another one draws meanwhile.
"""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING, Any

from producers.environments.adapters.folded_seeds import folded_seed

if TYPE_CHECKING:
    from types import TracebackType

_numpy_seed_bits = 32
_lock = threading.Lock()


class PrivateRandom:
    """Within `with`, the global random numbers are those of this object, and no other thread's are drawn."""

    def __init__(self, seed: int) -> None:
        with self:
            random.seed(seed)
            if (numpy := _numpy()) is not None:
                numpy.random.seed(folded_seed(seed, _numpy_seed_bits))
        # What was there before is kept aside by __enter__ and put back by __exit__.

    _own: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        """Put the object's own state in place."""
        _lock.acquire()
        self._others = _state()
        if self._own is not None:
            _put(self._own)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Keep the object's own state, and put back what was there."""
        self._own = _state()
        _put(self._others)
        _lock.release()


def _state() -> tuple[Any, Any]:
    numpy = _numpy()
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _put(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    numpy = _numpy()
    if numpy is not None and state[1] is not None:
        numpy.random.set_state(state[1])


def _numpy() -> Any:
    """The package numpy, where something has imported it."""
    numpy = sys.modules.get("numpy")
    return numpy if hasattr(numpy, "random") else None
