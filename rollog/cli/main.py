"""The command `rollog`: its subcommands, and what an error looks like.

Nothing heavy is imported here or in the modules of the commands; each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from rollog import __version__
from rollog.cli.audit import audit
from rollog.cli.broker import broker
from rollog.cli.capacity import capacity
from rollog.cli.dead_letters import dead_letters
from rollog.cli.doctor import doctor
from rollog.cli.export import export
from rollog.cli.lineage import lineage
from rollog.cli.plan import plan
from rollog.cli.replay import replay
from rollog.cli.resume import resume
from rollog.cli.roles import dispatch, rollout, train
from rollog.cli.runs import runs
from rollog.cli.topics import topics
from rollog.cli.up import up
from rollog.cli.verify import verify
from rollog.cli.watch import watch
from rollog.cli.weights import weights
from rollog.kernel.disk_room import is_full
from rollog.kernel.errors import RollogError, exit_status
from rollog.kernel.printable import printable_lines
from rollog.kernel.signals import exit_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Sequence


_standard_output = 1
_exit_status_pipe = 141
"""As of a process that SIGPIPE ended."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rollog")
@click.option("--debug", is_flag=True, envvar="ROLLOG_DEBUG", help="Show tracebacks of errors.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Asynchronous reinforcement-learning post-training of language models on Apache Kafka.

    `rollog up` does everything on this machine. The other commands are its parts, for a cluster or for separate
    terminals: `broker`, then `topics create`, then `dispatch`, `rollout` (as many as wanted), `train` and `watch`.

    The environment variables ROLLOG_LOG_LEVEL (debug, info, warning, error) and ROLLOG_LOG_FORMAT (text, json)
    say what is logged; ROLLOG_<SECTION>__<KEY> sets one setting.
    """
    context.obj = debug


for command in (
    up,
    resume,
    runs,
    watch,
    plan,
    capacity,
    audit,
    verify,
    replay,
    topics,
    dispatch,
    rollout,
    train,
    broker,
    lineage,
    export,
    weights,
    dead_letters,
    doctor,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `rollog` and exit.

    With 0, 1 (failed), 2 (settings, data, usage), 3 (no engine), 75 (start it again), 78 (superseded) or 128 + signal.
    """
    _find_modules_here()
    exit_on_sigterm()
    output = sys.stdout
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = cli.main(args=words, prog_name="rollog", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        _leave(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except RollogError as error:
        if "--debug" in words or os.environ.get("ROLLOG_DEBUG"):
            raise
        click.secho(f"error: {printable_lines(str(error))}", fg="red", err=True)
        _leave(exit_status(error))
    except BrokenPipeError:
        _leave_with_a_cut_pipe()
    except SystemExit:
        if (
            sys.stdout is not output
        ):  # click met a cut pipe, has replaced what leads there, and makes a 1 of it
            _leave_with_a_cut_pipe()
        raise
    except OSError as error:
        if not is_full(error):
            raise
        click.secho(
            f"error: {error}; no room left on that disk: make room, and start it again", fg="red", err=True
        )
        _leave(1)
    _leave(status if isinstance(status, int) else 0)


def _leave_with_a_cut_pipe() -> NoReturn:
    """Whoever read the output, `head` say, has seen enough. What is still in the buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _standard_output)
    _leave(_exit_status_pipe)


def _leave(status: int) -> NoReturn:
    """End this process. What a command opened is closed by now; the libraries it loaded may take seconds to go."""
    _note(status)
    if "torch" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _note(status: int) -> None:
    """For infra/keep-running.sh where torchrun stands between, which ends with 1 whatever its ranks ended with."""
    place = os.environ.get("KEEP_RUNNING_STATUS")
    if place and os.environ.get("LOCAL_RANK", "0") == "0":
        Path(place).write_text(f"{status}\n")


def _find_modules_here() -> None:
    """Let modules of the current directory be found, for reward functions, but never in place of installed ones."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


if __name__ == "__main__":
    main()
