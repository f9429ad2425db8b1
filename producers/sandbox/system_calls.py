"""The system calls that the kernel refuses in a sandbox, as a program of its packet filter (seccomp, x86-64).

Most of them reach memory that belongs to no process and no directory: the watchdog, which adds up what processes hold,
and the sizes of the directories would both miss it. Some reach into another process: the sandbox's first one outlives
commands and has no limits, and so would code that is put into it. The others open parts of the kernel that few programs
need.
"""

from __future__ import annotations

import errno
import struct

_denied = {
    "shmget": 29,
    "semget": 64,
    "msgget": 68,
    "ptrace": 101,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "perf_event_open": 298,
    "memfd_create": 319,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "pidfd_getfd": 438,
    "memfd_secret": 447,
}
_mmap = 9
_shared_and_anonymous = 0x01 | 0x20

_load, _and, _if_equal, _if_at_least, _return = 0x20, 0x54, 0x15, 0x35, 0x06
_number_offset, _architecture_offset, _mmap_flags_offset = 0, 4, 40
_x86_64 = 0xC000003E
_first_x32_number = 0x40000000
_allow = 0x7FFF0000
_kill = 0x80000000
_refuse = 0x00050000 | errno.EPERM


def filter_program() -> bytes:
    """The program as `struct sock_filter[]`.

    Another architecture's calls end the process, the x32 ones are refused. A shared anonymous mapping is refused: its
    pages stay when a process drops them, and no process holds them then.
    """
    instructions = [
        (_load, 0, 0, _architecture_offset),
        (_if_equal, 1, 0, _x86_64),
        (_return, 0, 0, _kill),
        (_load, 0, 0, _number_offset),
        *_refused_if(_if_at_least, _first_x32_number),
    ]
    for number in _denied.values():
        instructions += _refused_if(_if_equal, number)
    instructions += [
        (_if_equal, 0, 4, _mmap),
        (_load, 0, 0, _mmap_flags_offset),
        (_and, 0, 0, _shared_and_anonymous),
        *_refused_if(_if_equal, _shared_and_anonymous),
        (_return, 0, 0, _allow),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _refused_if(comparison: int, value: int) -> list[tuple[int, int, int, int]]:
    return [(comparison, 0, 1, value), (_return, 0, 0, _refuse)]
