"""Run a command where seccomp denies it system calls: ``python -m tests.helpers.denied CALL[,CALL] COMMAND...``."""

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {"mbind": 237, "move_pages": 279, "sched_setaffinity": 203, "memfd_create": 319},
    "aarch64": {"mbind": 235, "move_pages": 239, "sched_setaffinity": 122, "memfd_create": 279},
}
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF instructions, as in linux/bpf_common.h
ALLOW, EPERM = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def deny(*calls):
    """Let this process and its children fail with EPERM at these system calls, for ever."""
    numbers = [NUMBERS[platform.machine()][call] for call in calls]
    code = struct.pack("HBBI", LOAD, 0, 0, 0)  # the number of the call
    for i, number in enumerate(numbers):
        code += struct.pack("HBBI", EQUAL, len(numbers) - i, 0, number)
    code += struct.pack("HBBI", RETURN, 0, 0, ALLOW) + struct.pack("HBBI", RETURN, 0, 0, EPERM)
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(code) // 8, code)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    deny(*sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
