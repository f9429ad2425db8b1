"""The batch script for Slurm, with stand-ins for `srun` and `scontrol` that run its steps on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import settings_file, small_settings
from support.waiting import wait_until

from consumers.ledger import read_ledger
from rollog.kernel.broker.topics import RunTopics
from schemas import LedgerKind

if TYPE_CHECKING:
    from rollog.kernel.broker.kafka import KafkaBroker

root = Path(__file__).parents[2]
script = root / "examples" / "slurm" / "rollog.sbatch"

srun = """#!/bin/bash
# As the real one as far as the script knows it: --ntasks copies of the command, spread over nodes that each have
# a TMPDIR of their own. SIGTERM kills them at once.
ntasks=1
nodes=(node1 node2 node3)
echo "$(printf '%q ' "$@")" >> "$STEPS"
while [ "${1#--}" != "$1" ]; do
    case $1 in
        --ntasks=*) ntasks=${1#*=} ;;
        --nodelist=*) nodes=("${1#*=}") ;;
        --exclude=node1) nodes=(node2 node3) ;;
    esac
    shift
done
for number in $(seq 0 $((ntasks - 1))); do
    own=$TMPDIR/${nodes[number % ${#nodes[@]}]}
    mkdir -p "$own"
    TMPDIR=$own SLURM_PROCID=$number SLURM_STEP_ID=$$ "$@" &
    tasks="${tasks:-} $!"
done
trap 'kill -KILL $tasks 2>/dev/null' TERM
status=0
for task in $tasks; do
    while :; do
        ended=0
        wait "$task" || ended=$?
        kill -0 "$task" 2>/dev/null || break
    done
    [ $ended -le $status ] || status=$ended
done
exit $status
"""


def test_the_script_is_well_formed() -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    checker = shutil.which("shellcheck")
    if checker is not None:
        subprocess.run([checker, str(script)], check=True)


def test_what_is_not_named_is_asked_for(tmp_path: Path) -> None:
    environment = environment_of(tmp_path, "127.0.0.1:1")
    for name in ("RUN", "CONFIG", "ROLLOG_BROKER__BOOTSTRAP_SERVERS"):
        without = {key: value for key, value in environment.items() if key != name}
        ended = subprocess.run(
            ["bash", str(script)], check=False, capture_output=True, text=True, env=without
        )
        assert ended.returncode
        assert name in ended.stderr


def test_one_node_alone_is_refused(tmp_path: Path) -> None:
    environment = environment_of(tmp_path, "127.0.0.1:1") | {"SLURM_JOB_NUM_NODES": "1"}
    ended = subprocess.run(
        ["bash", str(script)], check=False, capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 2
    assert "rollog up" in ended.stderr


def environment_of(directory: Path, broker: str) -> dict[str, str]:
    """What Slurm and the user give the script, on three nodes."""
    commands = directory / "commands"
    commands.mkdir(exist_ok=True)
    for name, text in {"srun": srun, "scontrol": "#!/bin/sh\nprintf 'node1\\nnode2\\nnode3\\n'\n"}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOG_")}
    return {
        **kept,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TMPDIR": str(directory),
        "SLURM_SUBMIT_DIR": str(root),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "STEPS": str(directory / "steps"),
        "ROLLOG": f"{sys.executable} -m rollog.cli.main",
        "ROLLOG_HOME": str(directory / "home"),
        "ROLLOG_BROKER__BOOTSTRAP_SERVERS": broker,
        "RUN": "slurm-first",
        "CONFIG": str(directory / "run.toml"),
    }


@pytest.mark.broker
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_is_cut_off_goes_on_with_the_next_one(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    run = "slurm-first"
    settings = small_settings(tmp_path, run, run={"num_steps": 40}, dispatch={"stop_timeout_seconds": 60})
    settings_file(tmp_path / "run.toml", settings)
    environment = environment_of(tmp_path, kafka_broker.address)
    topics = RunTopics("rollog-test", run)

    def num_steps() -> int:
        return sum(entry.record.kind is LedgerKind.STEP for entry in read_ledger(kafka_broker, topics))

    def is_under_way() -> bool:
        assert first.poll() is None, (tmp_path / "first.log").read_text()[-4000:]
        with kafka_broker.admin() as admin:
            is_created = topics.steps in admin.list_topics()
        return is_created and num_steps() >= 2

    first = job(environment, tmp_path / "first.log")
    try:
        wait_until(is_under_way, 300, "two steps of the job")
        first.send_signal(signal.SIGTERM)
        assert first.wait(120) == 128 + signal.SIGTERM
    finally:
        end(first)
    done = num_steps()
    assert 2 <= done < 40
    said = (tmp_path / "first.log").read_text()
    assert said.count("INFO role: role ends") == 4, said

    second = job(environment, tmp_path / "second.log")
    try:
        assert second.wait(400) == 0, (tmp_path / "second.log").read_text()[-4000:]
    finally:
        end(second)
    ledger = [entry.record for entry in read_ledger(kafka_broker, topics)]
    assert (ledger[-1].kind, ledger[-1].version) == (LedgerKind.CLOSE, 40)
    steps = (tmp_path / "steps").read_text().splitlines()
    assert len(steps) == 7
    assert sum("--nodes=2 --ntasks=2" in step and "--exclude=node1" in step for step in steps) == 2


def job(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A job, with all of its steps in a process group of its own."""
    with log.open("wb") as output:
        return subprocess.Popen(
            ["bash", str(script)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def end(job: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
