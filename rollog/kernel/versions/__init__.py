"""Policy versions as tensors: how one is named, stored, patched and rebuilt."""
