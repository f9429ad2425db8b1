"""Imported by vLLM's process as its worker extension: it never gets any further."""

import signal

while True:
    signal.pause()
