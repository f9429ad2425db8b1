"""A real vLLM server on loopback, started and ended as docs/remote-engine.md says."""

from __future__ import annotations

import socket
import sys
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from producers.engines.remote_calls import InferenceServer
from producers.engines.served_weights import directory_variable
from producers.engines.vllm import installed_vllm, vllm_environment
from rollog.kernel.processes import ChildProcess
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

server_key = "a-key-of-the-tests"
_start_seconds = 600.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class VllmServer:
    """A server of one model, which may be killed and started again at its address."""

    model: Path
    weights: Path
    log_path: Path
    max_context_tokens: int
    tokens_per_pass: int
    port: int = field(default_factory=free_port)
    process: ChildProcess | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> InferenceServer:
        return InferenceServer(
            address=self.address, key=server_key, call_seconds=60.0, start_seconds=_start_seconds
        )

    def start(self) -> None:
        """Returns once it answers. To be called on the main thread: the server ends with the thread that starts it."""
        self.process = ChildProcess.start(
            self._command(), log_path=self.log_path, environment=self._environment()
        )
        wait_until(self._answers, timeout_seconds=_start_seconds, message="the server of vLLM answers")

    def kill(self) -> None:
        """End it at once, as `kill -9` does; its engine process ends with it."""
        assert self.process is not None
        self.process.kill()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "\n".join(self.process.last_lines(40))
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"),
            *("--model", str(self.model), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--tokens-only", "--load-format", "dummy", "--dtype", "float32"),
            *("--max-model-len", str(self.max_context_tokens), "--generation-config", "vllm"),
            *("--logprobs-mode", "processed_logprobs"),
            *("--worker-extension-cls", "producers.engines.vllm_worker.ServedWeightLoader"),
            *("--middleware", "producers.engines.vllm_guard.Guard"),
            *("--max-num-seqs", "64", "--kv-cache-memory-bytes", str(64 << 20), "--enforce-eager"),
            *("--no-enable-chunked-prefill", "--max-num-batched-tokens", str(self.tokens_per_pass)),
            "--disable-uvicorn-access-log",
        ]

    def _environment(self) -> dict[str, str]:
        _, on_cpu = installed_vllm()
        return {
            **vllm_environment(on_cpu=on_cpu, num_threads=1),
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_API_KEY": server_key,
            "VLLM_LOGGING_LEVEL": "WARNING",
            directory_variable: str(self.weights),
        }


@contextmanager
def vllm_server(
    model: Path, weights: Path, log_path: Path, *, max_context_tokens: int = 128, tokens_per_pass: int = 2048
) -> Iterator[VllmServer]:
    """A server that answers, of which nothing is left afterwards."""
    server = VllmServer(
        model, weights, log_path, max_context_tokens=max_context_tokens, tokens_per_pass=tokens_per_pass
    )
    try:
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.process.kill()
