"""The policy: loading it, its adapters, its reference."""
