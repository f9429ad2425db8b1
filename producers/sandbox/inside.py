"""The process that starts commands inside a sandbox, one after another. Imports nothing of ours.

Its text is put into the sandbox and run there as `python -I -S inside.py FD LIMITS`. Over the socket FD come requests,
one packet each: a JSON object and three files, the command's standard input, output and error. One packet answers each,
{"exit_status": n}, once the command and everything it started are dead. A packet without files ends the command.

What runs here is trusted, what it starts is not: that may kill this process, but cannot look into it, nor reach its
socket. Whatever it does, the other side of the socket is the one that measures and ends.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time

_pr_set_dumpable = 4
_not_startable = 127
_largest_packet_bytes = 1 << 18


def main() -> None:
    """Serve requests until the socket is closed."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    limits = json.loads(sys.argv[2])
    # The kernel ends these processes first when memory runs out.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123 - starts in half the time
        score.write("1000")
    ctypes.CDLL(None).prctl(_pr_set_dumpable, 0, 0, 0, 0)
    control.send(b"{}")
    while True:
        packet, files, _, _ = socket.recv_fds(control, _largest_packet_bytes, 3)
        if not packet:
            return
        if files:
            status = run(control, json.loads(packet), files, limits)
            control.send(json.dumps({"exit_status": status}).encode())


def run(control: socket.socket, request: dict, files: list, limits: dict) -> int:  # type: ignore[type-arg]
    """Run one command; its exit status, negative when a signal ended it."""
    pid = os.fork()
    if pid == 0:
        become(request, files, limits)
    for descriptor in files:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while ended not in (ready := dict(poll.poll())):
        # Whether asked to or left alone: end the command.
        if control.fileno() in ready:
            control.recv(_largest_packet_bytes)
            kill_others()
            poll.unregister(control)
    os.close(ended)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while kill_others():
        time.sleep(0.001)
    return status


def kill_others() -> bool:
    """Kill all processes of the sandbox but this one and the first; False when there are none."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def become(request: dict, files: list, limits: dict) -> None:  # type: ignore[type-arg]
    """Turn this process into the command. Does not return."""
    try:
        os.setsid()
        for target, descriptor in enumerate(files):
            os.dup2(descriptor, target)
        for descriptor in files:
            os.close(descriptor)
        for name, value in limits.items():
            kind = getattr(resource, name)
            _, hardest = resource.getrlimit(kind)
            most = value if hardest == resource.RLIM_INFINITY else min(value, hardest)
            resource.setrlimit(kind, (most, most))
        for number in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
        ):  # an interpreter ignores them, and so would what it becomes
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(request["command"][0], request["command"], request["environment"])  # noqa: S606 - words, no shell
    except OSError as error:
        os.write(2, f"cannot start {request['command'][0]}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(_not_startable)


if __name__ == "__main__":
    main()
