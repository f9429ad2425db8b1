"""The demo: a small model and a verifiable task, made offline."""
