"""Whether a file lies on a disk of this machine, as SQLite's faster journal needs."""

from __future__ import annotations

from pathlib import Path

# Where processes on one machine see each other's shared memory. Whatever is not named
# here, network file systems above all, gets the journal that works everywhere.
_LOCAL = frozenset(
    {
        "bcachefs",
        "btrfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "overlay",
        "ramfs",
        "reiserfs",
        "tmpfs",
        "xfs",
        "zfs",
    }
)
_MOUNTS = Path("/proc/mounts")


def journal_mode(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return "wal" for a file on a local disk, else "delete", the rollback journal."""
    return "wal" if file_system_of(path, mounts) in _LOCAL else "delete"


def file_system_of(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of the file system that holds `path`; "" where unknown."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
        place = path.resolve()
    except (OSError, RuntimeError):
        return ""
    found, longest = "", -1
    for line in lines:
        _, point, kind = (*line.split(), "", "", "")[:3]
        parts = Path(_unescaped(point)).parts
        # Of mounts on one point the last hides the others.
        if len(parts) >= longest and place.parts[: len(parts)] == parts and point:
            found, longest = kind, len(parts)
    return found


def _unescaped(point: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        point = point.replace(f"\\{code}", character)
    return point
