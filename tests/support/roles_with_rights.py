"""One small run whose roles connect under principals of their own, each with a broker object of its own.

Engines are simulated and nothing is learnt: what matters is which requests each role sends to the cluster.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from consumers.audit.auditor import audit_run
from producers.dispatcher.role import run_dispatcher
from producers.rollout.role import run_rollout
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.rights import Role
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.run.creation import create_run
from rollog.run.role_settings import dispatcher_settings, rollout_settings, trainer_settings
from rollog.settings.settings import Settings
from support.waiting import wait_until
from trainer.engines.simulated import SimulatedTrainingEngine
from trainer.startup import start_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from consumers.audit.report import AuditReport
    from rollog.kernel.broker.ports import Broker
    from schemas import RunManifest

_ends_within_seconds = 180.0
working_roles = (Role.DISPATCHER, Role.TRAINER, Role.WORKER)


def settings_of_roles(home: Path, run: str, prefix: str, **sections: dict[str, Any]) -> Settings:
    """A run of two steps of one group; `sections` override single keys."""
    home.mkdir(parents=True, exist_ok=True)
    prompts = home / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"number {n}"}) + "\n" for n in range(8)))
    values: dict[str, dict[str, Any]] = {
        "run": {"name": run, "prefix": prefix, "num_steps": 2},
        "broker": {"samples_partitions": 2, "max_workers": 2},
        "model": {"max_context_tokens": 64},
        "groups": {"groups_per_batch": 1, "group_size": 2},
        "weights": {"uri": (home / "weights").resolve().as_uri()},
        "data": {"train": str(prompts)},
        "sampling": {"max_tokens": 4},
        "evaluation": {"every_steps": 0, "sampled": False},
        "trainer": {"num_minibatches": 1},
        "reward": {"function": "support.loop_rewards:even_words", "num_processes": 0},
        "rollout": {"engine": "simulated", "capacity": 2, "heartbeat_seconds": 0.5},
    }
    for section, keys in sections.items():
        values[section] = values.get(section, {}) | keys
    return Settings.model_validate(values)


@dataclass
class RunningRole:
    """One role as a thread; `errors` holds what ended it."""

    thread: threading.Thread
    stop: threading.Event
    errors: list[BaseException] = field(default_factory=list)


class RolesWithRights:
    """The roles of one run, each over the broker that is given for it."""

    def __init__(self, settings: Settings, home: Path, brokers: Mapping[Role, Broker]) -> None:
        self.settings = settings
        self.topics = RunTopics(settings.run.prefix, settings.run_name)
        self.running: dict[Role, RunningRole] = {}
        self._home = home
        self._brokers = brokers
        self._manifest: RunManifest | None = None

    @property
    def manifest(self) -> RunManifest:
        """Of the run, once it is created."""
        assert self._manifest is not None
        return self._manifest

    def create(self) -> None:
        """Create the run as its creator."""
        self._manifest = create_run(self._brokers[Role.CREATOR], self.settings)

    def start(self, role: Role) -> RunningRole:
        """Start one of the roles that work."""
        stop = threading.Event()
        errors: list[BaseException] = []

        def work() -> None:
            try:
                self._work(role, stop)
            except BaseException as error:  # noqa: BLE001 - handed to the test
                errors.append(error)

        running = RunningRole(threading.Thread(target=work, name=f"role-{role}"), stop, errors)
        self.running[role] = running
        running.thread.start()
        return running

    def wait_for_error(self, role: Role, within_seconds: float) -> BaseException:
        """What ends a role."""
        running = self.running[role]
        wait_until(lambda: running.errors, within_seconds, f"{role} to be refused")
        return running.errors[0]

    def wait_for_steps(self) -> None:
        """Until every role has done its part once more, as a reader sees it."""
        place = TopicPartition(self.topics.steps, 0)
        with self._brokers[Role.READER].consumer(client_id="steps") as consumer:
            begin = consumer.end_offsets([place])[place]

            def has_moved() -> bool:
                for running in self.running.values():
                    if running.errors:
                        raise running.errors[0]
                return consumer.end_offsets([place])[place] >= begin + 6

            wait_until(has_moved, 60, "further steps")

    def work_to_their_end(self) -> None:
        """Start every role that works, wait until all have ended, and leave none behind."""
        try:
            for role in working_roles:
                self.start(role)
            self.to_their_end()
        finally:
            self.end()

    def to_their_end(self) -> None:
        """Wait until all have ended because the run did."""
        wait_until(
            lambda: (
                any(role.errors for role in self.running.values())
                or not any(role.thread.is_alive() for role in self.running.values())
            ),
            _ends_within_seconds,
            "the end of the run",
        )
        for role in self.running.values():
            if role.errors:
                raise role.errors[0]

    def audited(self) -> AuditReport:
        """What an auditor finds who has the rights of a reader."""
        return audit_run(self._brokers[Role.READER], self.topics, WeightsStore(self.manifest.weights_uri))

    def end(self) -> None:
        """End whatever still runs."""
        for role in self.running.values():
            role.stop.set()
        for role in self.running.values():
            role.thread.join(_ends_within_seconds)

    def _work(self, role: Role, stop: threading.Event) -> None:
        broker, settings = self._brokers[role], self.settings
        if role is Role.DISPATCHER:
            run_dispatcher(dispatcher_settings(settings, self._home), broker, Metrics(), stop)
        elif role is Role.WORKER:
            run_rollout(
                rollout_settings(settings, self.manifest, self._home, "worker"), broker, Metrics(), stop
            )
        else:
            engine = SimulatedTrainingEngine()
            # Workers would read a tokenizer from a model that is named in the run.
            named = settings.changed(model={"path": "simulated"})
            to_train = trainer_settings(named, self.manifest, self._home)
            with start_trainer(to_train, broker, Metrics(), engine) as trainer:
                trainer.run(stop)
