"""Renaming that never replaces anything, and exchanging two names in one step, as far as the system can."""

import ctypes
import errno
import os
from pathlib import Path

AT_CWD = -100
# renameat2 of Linux, renamex_np of macOS
LINUX_NOREPLACE, LINUX_EXCHANGE = 1, 2
MACOS_SWAP, MACOS_EXCL = 2, 4
# the kernel or the file system does not have the call, or not this flag of it
MISSING = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def rename_new(source: Path, target: Path) -> None:
    """Rename to a name that nothing has.

    Raises FileExistsError where something has it, however late it came there; OSError for other failures.
    """
    if _rename(source, target, LINUX_NOREPLACE, MACOS_EXCL):
        return
    if source.is_symlink() or not source.is_dir():
        _rename_file(source, target)
        return
    # only one process can make the folder, and a rename replaces an empty folder and no other
    target.mkdir()
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        target.rmdir()
        raise


def _rename_file(source: Path, target: Path) -> None:
    """Rename a file by a second link; where there are none, over a new empty file that only we can make."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (*MISSING, errno.EPERM, errno.EMLINK):
            raise
    else:
        source.unlink()
        return
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    os.close(descriptor)
    try:
        source.replace(target)
    except OSError:
        target.unlink()
        raise


def exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where the system cannot. Raises OSError where it fails."""
    return _rename(first, second, LINUX_EXCHANGE, MACOS_SWAP)


def _rename(source: Path, target: Path, linux: int, macos: int) -> bool:
    """Rename with the system's own flag; False where it has no such call."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if hasattr(library, "renameat2"):
        status = library.renameat2(AT_CWD, names[0], AT_CWD, names[1], linux)
    elif hasattr(library, "renamex_np"):
        status = library.renamex_np(*names, macos)
    else:
        return False
    if status == 0:
        return True
    number = ctypes.get_errno()
    if number in MISSING:
        return False
    raise OSError(number, os.strerror(number), str(source), None, str(target))
