"""The followers' side of the multi-rank RPC: each holds an engine, and makes the calls that rank 0 makes.

Consumes calls of rank 0, produces answers, and its part of checkpoints. Touches neither broker nor weights store. A
call that fails is answered with the error, and ends the process; the end of rank 0 ends it at once. A thread writes
this rank's part of a checkpoint beside the calls after it, and tells rank 0 in a notice what came of it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollog.kernel.disk_room import naming_full_disk
from rollog.kernel.errors import EngineError, RollogError, exit_status
from rollog.kernel.logs import configure_logging, get_logger
from rollog.settings.training import TrainerConfig
from trainer.engines.multi_rank.connections import Connection
from trainer.engines.multi_rank.messages import (
    RankMessage,
    batch_of,
    decode_message,
    encode_message,
    settings_of,
)
from trainer.engines.multi_rank.ranks import launched_group, launched_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from trainer.checkpoint_files import Digests
    from trainer.engines.multi_rank.ranks import LaunchedRank, RankGroup
    from trainer.engines.ports import TrainingEngine

    MakeEngine = Callable[[dict[str, Any]], TrainingEngine]

log = get_logger("follower")


def run_follower(launched: LaunchedRank) -> int:
    """Serve the calls of rank 0 until it sends the last. The first signal to stop is left to rank 0, the second acts.

    Returns the status to end with, as rank 0 says it: after 0 nobody starts this one again. Raises EngineError where
    rank 0 cannot be reached, and what a call raised here; ends the process when it is gone.
    """
    _leave_stopping_to_rank_0()
    group = launched_group(launched)
    connection = Connection(group.connect(), "rank 0", _exit_without_rank_0)
    log.info("following", rank=launched.rank, world_size=launched.world_size, pid=os.getpid())
    status = serve_calls(connection, lambda made_with: _make_engine(made_with, group))
    connection.close()
    return status


def serve_calls(connection: Connection, make_engine: MakeEngine) -> int:
    """Receive calls, make each on the engine, and answer it, until the call `end`, whose status is returned.

    Raises what a call raised, after it was answered, and EngineError for what is no call.
    """
    engine: TrainingEngine | None = None
    while True:
        call = decode_message(connection.receive())
        if call.name == "end":
            connection.expect_end()
            connection.send(encode_message(RankMessage(name="done")))
            return int(call.arguments["status"])
        result: dict[str, Any] = {}
        try:
            if call.name == "create":
                engine = make_engine(call.arguments)
            else:
                result = _dispatch(call, engine, connection)
        except Exception as error:
            connection.expect_end()
            failed = RankMessage(name="failed", arguments={"error": f"{type(error).__name__}: {error}"})
            connection.send(encode_message(failed))
            raise
        connection.send(encode_message(RankMessage(name="done", arguments=result)))


def _dispatch(call: RankMessage, engine: TrainingEngine | None, connection: Connection) -> dict[str, Any]:
    """Make one call. Its result is dropped where rank 0 has the same."""
    arguments = call.arguments
    if engine is None:
        raise EngineError(f"{call.name} was called before an engine was made")
    match call.name:
        case "start":
            weights_path = arguments["weights_path"]
            engine.start(arguments["model_path"], None if weights_path is None else Path(weights_path))
        case "train_step":
            engine.train_step(batch_of(call))
        case "change_settings":
            engine.change_settings(settings_of(arguments))
        case "export_weights":
            engine.export_weights(None)
        case "save_checkpoint":
            return {"digests": dict(engine.save_checkpoint(Path(arguments["directory"])))}
        case "begin_checkpoint":
            write = engine.begin_checkpoint(Path(arguments["directory"]))
            told = (connection, write, arguments["directory"])
            threading.Thread(target=_write_beside, args=told, name="checkpoints", daemon=True).start()
        case "load_checkpoint":
            engine.load_checkpoint(Path(arguments["directory"]))
        case "close" | "sequence_logprobs":
            # Arguments by their names, as in the port.
            getattr(engine, call.name)(**arguments)
        case _:
            raise EngineError(
                f"{call.name!r} is no call of an engine; all ranks must run the same version of rollog"
            )
    return {}


def _write_beside(connection: Connection, write: Callable[[], Digests], directory: str) -> None:
    try:
        with naming_full_disk(Path(directory)):
            digests = dict(write())
        notice = RankMessage(name="done", arguments={"directory": directory, "digests": digests})
    except Exception as error:
        log.exception("checkpoint not written", error=error, directory=directory)
        said = {"directory": directory, "error": f"{type(error).__name__}: {error}"}
        notice = RankMessage(name="failed", arguments=said)
    with suppress(EngineError):  # without rank 0 this process ends
        connection.send(encode_message(notice), is_notice=True)


def _make_engine(made_with: dict[str, Any], group: RankGroup) -> TrainingEngine:
    from trainer.engines.deepspeed import DeepSpeedEngine  # noqa: PLC0415 - rank 0 is told of this rank before

    return DeepSpeedEngine(
        settings=settings_of(made_with["settings"]),
        trainer=TrainerConfig.model_validate(made_with["trainer"]),
        temperature=made_with["temperature"],
        dtype=made_with["dtype"],
        ranks=group,
    )


def _exit_without_rank_0() -> None:
    log.error("rank 0 is gone")
    os._exit(1)


def _leave_stopping_to_rank_0() -> None:
    stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def ignore_once(received: int, frame: FrameType | None) -> None:
        del received, frame
        for stop_signal in stop_signals:
            signal.signal(stop_signal, signal.SIG_DFL)

    for stop_signal in stop_signals:
        signal.signal(stop_signal, ignore_once)


def main() -> None:
    """Follow as the rank that the environment says: what rank 0 starts on its own machine."""
    configure_logging()
    launched = launched_rank(os.environ)
    if launched is None or launched.rank == 0:
        sys.exit("this is started by rank 0 of a trainer, which says so in RANK and WORLD_SIZE")
    try:
        status = run_follower(launched)
    except RollogError as error:
        log.error("rank failed", rank=launched.rank, error=error)  # noqa: TRY400 - for a traceback there is --debug
        status = exit_status(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
