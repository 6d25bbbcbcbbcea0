"""What to do about an error of the system at the start: its number says what is wrong, its path where.

The system's own words end with the path; an error that we have worded ourselves has no number and its advice already.
"""

import errno

_IN_THE_WAY = "a file stands where a folder is due: move it away, or name another folder in the configuration"
_NO_ACCESS = "give it to the daemon's user (chown, mode 0700), or name a folder of that user's in the configuration"
_NO_ROOM = "free space on that file system, or name a folder on another one in the configuration"
_NO_DESCRIPTORS = "raise the limit of open files (LimitNOFILE=, `ulimit -n`)"
_ADVICE = {
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: "a folder stands where a file is due: move it away",
    errno.ELOOP: "a symbolic link stands there: put a file or folder of its own in its place",
    errno.ENOENT: "make what is missing, or mend its path in the configuration",
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EROFS: "mount that file system writable, or name a folder on another one in the configuration",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EMFILE: _NO_DESCRIPTORS,
    errno.ENFILE: _NO_DESCRIPTORS,
    errno.EIO: "look at the kernel's log: the disk may be failing",
}
_OTHER = "see that the place is there, that the daemon's user may use it, and what the kernel's log says"


def described(error: OSError) -> str:
    """The error's own words, then what to do."""
    if error.errno is None:
        return str(error)
    return f"{error}; {_ADVICE.get(error.errno, _OTHER)}"
