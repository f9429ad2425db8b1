"""Files of a weights store that no notice names: what crashes and fenced trainers left, partial files, too.

A trainer that was replaced may write such a file late, so the store is listed again now and then.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollog.kernel.logs import get_logger
from trainer.weights_deletion import delete_files, unnamed

if TYPE_CHECKING:
    from consumers.named_weights import NamedWeights
    from rollog.kernel.store_owner import StoreRights
    from rollog.kernel.weights import WeightsStore

log = get_logger("trainer")

_seconds_between_listings = 600.0


class OrphanSweep:
    """Deletes what no notice names, after a commit of its own.

    | state | on | then |
    | --- | --- | --- |
    | nothing listed | `list_if_due`, `list_now` | listed |
    | listed | a commit of this trainer | confirmed: who wrote these files can commit them no more, or has |
    | confirmed | `sweep` | what is still unnamed is deleted; nothing listed |
    """

    def __init__(self, store: WeightsStore, rights: StoreRights, named: NamedWeights) -> None:
        self._store = store
        self._named = named
        self._may_sweep = rights.may_sweep
        self._listed: list[str] = []
        self._is_confirmed = False
        self._next_listing = -math.inf
        if not rights.may_sweep:
            log.info("files that no notice names are left in the store", reason=rights.reason)

    def list_if_due(self, now: float) -> None:
        """List the store at the start, and now and then. No version is being written. Raises WeightsError."""
        if now >= self._next_listing and not self._listed:
            self._next_listing = now + _seconds_between_listings
            self.list_now()

    def list_now(self) -> None:
        """List the store. No version is being written. Raises WeightsError."""
        # What could not be read may name files in a way that is not known here.
        if self._may_sweep and not self._named.num_unreadable:
            self._listed = [*self._store.names(), *self._store.partial_names()]
            self._is_confirmed = False

    def committed(self) -> None:
        """A transaction of this trainer succeeded."""
        self._is_confirmed = bool(self._listed)

    def sweep(self) -> None:
        """Delete what was listed, if a commit came after that, and is named by no notice until now.

        Raises WeightsError.
        """
        if not self._is_confirmed:
            return
        names = unnamed(self._listed, self._named)
        self._listed, self._is_confirmed = [], False
        if names:
            log.info("deleting files that no notice names", num_files=len(names), first=names[0])
            delete_files(self._store, names)
