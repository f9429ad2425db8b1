"""The newest version, stored again by the trainer that has it: without its files no worker could begin.

Shards and manifest get new names, which a second notice of the same weights tells; a single file, whose name follows
from its content, gets its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollog.kernel.errors import LedgerError, WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.manifest import manifest_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.weights import WeightsStore
    from schemas import WeightVersion

log = get_logger("trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAgain:
    """How a trainer stores the version at which its engine stands.

    `publish` stores it in full, as the base of the next one; `announce` commits a notice.
    """

    store: WeightsStore
    publish: Callable[[int], WeightVersion]
    announce: Callable[[WeightVersion], None]

    def __call__(self, version: int, sha256: str, notice: WeightVersion | None) -> WeightVersion:
        """Store `version` again, whose last notice is `notice` and whose digest in the ledger is `sha256`.

        Returns the notice that counts now. Raises LedgerError where the engine has other weights, with nothing
        announced, WeightsError where the store takes none, and what committing raises.
        """
        what = f"the weights of version {version}" if notice is None else notice.name
        log.warning(
            "weights are not in the store and are published again", name=what, store=self.store.public_uri
        )
        if notice is not None and notice.format != manifest_format:
            # Nothing can be written beside it.
            self.store.delete(notice.name)
        again = self.publish(version)
        if again.sha256 != sha256:
            raise LedgerError(
                f"{what} is not in {self.store.public_uri}, and the engine has other weights ({again.name}): "
                "restore the store from a copy"
            )
        if again != notice:
            self.announce(again)
        return again


def is_whole(store: WeightsStore, notice: WeightVersion) -> bool:
    """Whether a version is in the store: on this disk byte for byte, elsewhere by the lengths of its files.

    Raises WeightsStoreSilent.
    """
    if not store.is_local:
        return store.has(notice)
    try:
        store.check(notice)
    except WeightsError as error:
        log.warning("weights cannot be used", name=notice.name, error=str(error))
        return False
    return True
