"""Where this process' own control groups are: what a tree of tasks' groups is made below."""

from __future__ import annotations

from pathlib import Path


def own_groups(proc: Path) -> dict[str, Path]:
    """Controller -> directory of our own group; version 2 under the empty name."""
    paths = {}
    try:
        lines = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    found: dict[str, Path] = {}
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(None, 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        names = [""] if kind == "cgroup2" else [option for option in options.split(",") if option]
        for controller in names:
            if controller in paths and controller not in found:
                found[controller] = _below(Path(fields[4]), fields[3], paths[controller])
    return found


def _below(mount_point: Path, mount_root: str, path: str) -> Path:
    """Return the place of group `path` under a mount of the subtree `mount_root` (a container sees only its own)."""
    if mount_root != "/" and path.startswith(mount_root):
        path = path[len(mount_root) :]
    candidate = mount_point / path.lstrip("/")
    return candidate if candidate.is_dir() else mount_point
