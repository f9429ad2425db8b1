"""Inference engines behind one port, with one contract suite (tests/contract/test_engine_contract.py).

ports.py                what a rollout worker needs: generate, abort, pause, load_weights, resume
choice.py               which engine the configuration names
vllm.py                 vLLM; vllm_worker.py is its part inside vLLM's own process
remote.py               a vLLM server elsewhere: remote_calls.py its HTTP, remote_answers.py what it answers and the
                        marks of weights, remote_state.py what it is; on its machine vllm_guard.py and served_weights.py
vllm_prefill.py         recorded tokens read by vLLM as prompts, for a verification
transformers_engine.py  plain transformers, where vLLM is not installed
simulated.py            no model: for tests and for benchmarks in simulated time
socket_directory.py     where vLLM's sockets and temporary files lie
starting.py             a start that can be abandoned          lifeline.py  an end that ends all that waits
weights_file.py         and model_files.py: files of a model
"""

from __future__ import annotations
