"""Stages that produce records.

dispatcher/   prompts in, tasks out: which rollout is made, by whom, and when it is cancelled
rollout/      tasks in, samples out; what happens when weights arrive
engines/      what generates: vLLM, transformers, simulated      rewards/   what scores: the user's function
environments/  what a session acts in, turn by turn, run apart from the worker
processes/    how what is not ours is started apart from the worker, and ended
agents/       programs that ask the policy, run apart from the worker     sessions/  what they ask, recorded as ids
"""

from __future__ import annotations
