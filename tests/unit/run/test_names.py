"""Names of runs."""

from __future__ import annotations

import pytest

from rollog.kernel.errors import ConfigError
from rollog.run.names import checked_name, made_up_name


def test_made_up_names_are_well_formed_and_differ() -> None:
    names = {made_up_name() for _ in range(50)}

    assert len(names) > 40
    assert all(checked_name(name) == name for name in names)


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "dot.ted", "x" * 49, "line\n", "ünicode"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="malformed"):
        checked_name(name)
