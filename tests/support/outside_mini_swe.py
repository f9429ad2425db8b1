"""mini-swe-agent, unchanged, as a user brings it. Runs under an interpreter of its own, which does not have rollog."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before the imports, which read them.
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": str(Path(tempfile.gettempdir()) / "rollog-mini-swe-agent"),
}

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

if TYPE_CHECKING:
    from producers.agents.given import AgentTask, PolicyAccess


def run(task: AgentTask, policy: PolicyAccess) -> str:
    """Its own configuration `mini`, which calls a tool for each command of the shell."""
    config = yaml.safe_load((package_dir / "config" / "mini.yaml").read_text(encoding="utf-8"))
    own: dict[str, Any] = _templates(config["agent"])
    with tempfile.TemporaryDirectory() as directory:
        model = LitellmModel(
            model_name="openai/policy",
            model_kwargs={"api_base": policy.base_url, "api_key": policy.api_key},
            cost_tracking="ignore_errors",
            **_templates(config["model"]),
        )
        agent = DefaultAgent(model, LocalEnvironment(cwd=directory), cost_limit=0.0, **own)
        ended = agent.run(task.text)
    return f"{ended['exit_status']}: {ended['submission']}"


def _templates(section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key.endswith("_template")}
