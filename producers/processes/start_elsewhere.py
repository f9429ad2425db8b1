"""Starts a host under an interpreter that does not have rollog: a file, `python start_elsewhere.py MODULE ARGUMENTS`.

The package `producers` is loaded from where this file lies, and nothing that lies beside it: that interpreter's own
packages are the only others it can import.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Make `producers` importable and become the host that the first argument names."""
    # The first entry is this file's folder, whose modules are no modules of their own.
    del sys.path[0]
    host = sys.argv.pop(1)
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        package.name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package.name] = module
    spec.loader.exec_module(module)
    runpy.run_module(host, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
