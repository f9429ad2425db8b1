"""The order in which files of tests begin: the ones that take longest first, all others after them by name.

What is written here needs to be right only roughly; `make test` prints what takes long.
"""

from __future__ import annotations

longest_files = (
    "contract/test_learning_engine_contract.py",
    "contract/test_engine_contract.py",
    "integration/test_cli_roles.py",
    "integration/test_benchmark_runs.py",
    "unit/sessions/test_endpoint_process.py",
    "integration/test_whole_run.py",
    "integration/test_run_of_patches.py",
    "integration/test_from_python.py",
    "integration/test_several_ranks.py",
    "integration/test_run_of_adapters.py",
    "integration/test_up_interrupted.py",
    "integration/test_partial_loads.py",
    "unit/rollout/test_reload.py",
    "integration/test_whole_run_of_agents.py",
    "integration/test_whole_run_of_episodes.py",
    "property/test_late_rewards.py",
    "property/test_simulated_runs.py",
    "integration/test_replay.py",
    "integration/test_recorded_archive.py",
    "integration/test_reproducible.py",
    "integration/test_trainer_recovery.py",
    "integration/test_tampered_segment.py",
    "contract/test_training_engine_contract.py",
    "contract/test_critic_contract.py",
    "contract/test_lora_contract.py",
    "integration/test_embedded_faults.py",
    "integration/test_amendable_settings.py",
    "integration/test_trainer_amend.py",
)
