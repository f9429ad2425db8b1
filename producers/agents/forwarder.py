"""Runs a program inside a sandbox and takes its calls to the one socket that leads out. Imports nothing of ours.

Its text is run there as `python -I -S -c TEXT SOCKET COMMAND...`: it listens on the sandbox's own loopback, which leads
nowhere else, tells the program the address as OPENAI_BASE_URL, and ends with the program's exit status.
"""

import asyncio
import contextlib
import os
import sys

_chunk_bytes = 1 << 16


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on whatever comes until its end."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_chunk_bytes):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


async def forward(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of the program."""
    try:
        their_reader, their_writer = await asyncio.open_unix_connection(path)
    except OSError:
        writer.close()
        return
    await asyncio.gather(copy(reader, their_writer), copy(their_reader, writer))
    their_writer.close()
    writer.close()


async def main(path: str, command: list) -> int:  # type: ignore[type-arg]
    """Listen, run the program, and give its exit status."""
    server = await asyncio.start_server(
        lambda reader, writer: forward(path, reader, writer), host="127.0.0.1", port=0
    )
    port = server.sockets[0].getsockname()[1]
    address = f"http://127.0.0.1:{port}/v1"
    variables = {**os.environ, "OPENAI_BASE_URL": address}
    try:
        process = await asyncio.create_subprocess_exec(*command, env=variables)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127
    return await process.wait()


if __name__ == "__main__":
    status = asyncio.run(main(sys.argv[1], sys.argv[2:]))
    # By a signal: as a shell says it.
    os._exit(status if status >= 0 else 128 - status)
