"""What lies in the run folder, and under which name."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["RunFolder"]


@dataclass(frozen=True)
class RunFolder:
    """The folder of one controller, `run_dir` in the settings. It ends with the boot."""

    path: Path = Path("/run/sched-ctl")

    @property
    def lock(self) -> Path:
        """Held while a controller runs; tells who it is."""
        return self.path / "lock"

    @property
    def socket(self) -> Path:
        """Where a running controller answers."""
        return self.path / "control.sock"

    @property
    def watched(self) -> Path:
        """The folder of one that only looks, which may run beside a controller."""
        return self.path / "watch"

    @property
    def journal(self) -> Path:
        """What the machine was like before we changed it."""
        return self.path / "journal"

    @property
    def dump(self) -> Path:
        """What the kernel wrote down when it ended our scheduler."""
        return self.path / "sched_ext.dump"

    @property
    def rescaled(self) -> Path:
        """Which queries were given other replicas, and what came of it."""
        return self.path / "rescaled"
