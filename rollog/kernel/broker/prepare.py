"""`python -m rollog.kernel.broker.prepare DIRECTORY`: have the embedded Apache Kafka ready before it is first needed.

`make setup` does this. Without it, the first start downloads Kafka, and every start takes longer.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.embedded_jars import kept_classes
from rollog.kernel.errors import BrokerError, RollogError


def prepare(cache_directory: Path) -> None:
    """Download Apache Kafka into `cache_directory`, and keep there what Java works out at each start of it.

    Reading, checking and linking the same classes is half of a start. Java can keep the outcome in a file that is made
    while a broker runs once (JEP 483, ahead-of-time class loading). Where the file does not fit Java or the jars, Java
    leaves it aside. Does nothing where the file is there.
    Raises ConfigError when Kafka cannot be fetched, BrokerError when it does not start.
    """
    kept = kept_classes(cache_directory.resolve())
    if kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as directory:
        written = Path(directory) / kept.name
        with EmbeddedKafka(Path(directory) / "data", cache_directory, keep_classes_in=written):
            pass
        if not written.exists():
            raise BrokerError(f"Java did not write {written}: Kafka starts without it, in twice the time")
        written.replace(kept)


def main(arguments: list[str]) -> int:
    """Exit status 0 when Kafka is ready, 1 when it cannot be had, 2 when the command line is wrong."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m rollog.kernel.broker.prepare DIRECTORY\n")
        return 2
    try:
        prepare(Path(arguments[0]))
    except (RollogError, OSError) as error:
        sys.stderr.write(f"the embedded Apache Kafka is not ready: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
