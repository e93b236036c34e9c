"""Out of memory, told from another SIGKILL: the kernel counts such kills in the cgroup."""

from pathlib import Path


def oom_kills() -> int:
    """Processes of this container that the kernel has killed for memory; 0 where it does not say.

    cgroup v2 counts them in memory.events, v1 in memory.oom_control, both under the key oom_kill.
    """
    for path in _counters():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0


def _counters() -> list[Path]:
    """Where the counter of this process's cgroup can lie, the most specific place first."""
    root = Path("/sys/fs/cgroup")
    paths = []
    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        groups = []
    for group in groups:
        number, controllers, folder = group.split(":", 2)
        if number == "0":
            paths.append(root / folder.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            paths.append(root / "memory" / folder.lstrip("/") / "memory.oom_control")
    return [*paths, root / "memory.events", root / "memory" / "memory.oom_control"]
