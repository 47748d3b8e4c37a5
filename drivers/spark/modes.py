"""Which queries have tasks that stay, from what is seen of their jobs.

Spark does not say in which mode a query runs. But in continuous and in real-time mode all stages of
a job run at once, and none of their tasks ends before all do. How many tasks are active is not
looked at: the web interface may say that only with the next heartbeat, ten seconds later.
"""

from collections.abc import Collection, Sequence

from sched_ctl.drivers.spark.answers import Job

__all__ = ["STEADY_S", "Modes"]

STEADY_S = 3.0  # tasks that run all at once for so long have no end in sight
HURRIED = 3  # looks in a row that found another job: the tasks do end, after all


class Modes:
    """steady: runs whose tasks stay."""

    def __init__(self) -> None:
        self.steady: frozenset[str] = frozenset()
        self._whole: dict[
            int, float
        ] = {}  # job -> since when all its stages run, and no task ended
        self._ending: dict[int, float] = {}  # job -> since when some of its tasks have ended
        self._last: dict[str, tuple[int, int]] = {}  # run -> its job, and looks that found another

    def look(self, jobs: Sequence[Job], now_s: float) -> None:
        """Take in the jobs that run now; every second or so."""
        self._whole = {
            job.job_id: self._whole.get(job.job_id, now_s)
            for job in jobs
            if job.num_completed_tasks == 0 and job.num_active_stages == len(job.stage_ids) > 0
        }
        self._ending = {
            job.job_id: self._ending.get(job.job_id, now_s)
            for job in jobs
            if job.num_completed_tasks > 0
        }
        steady = set(self.steady)
        for job in jobs:
            run = job.group
            if run is None:
                continue
            if now_s - self._whole.get(job.job_id, now_s) >= STEADY_S:
                steady.add(run)
            last, others = self._last.get(run, (job.job_id, 0))
            others = 0 if last == job.job_id else others + 1
            self._last[run] = job.job_id, others
            if others >= HURRIED or now_s - self._ending.get(job.job_id, now_s) >= STEADY_S:
                steady.discard(run)
        self.steady = frozenset(steady)

    def add(self, runs: Collection[str]) -> None:
        """These are known to."""
        self.steady |= frozenset(runs)

    def keep(self, runs: Collection[str]) -> None:
        """All others have ended."""
        self.steady &= frozenset(runs)
        self._last = {run: seen for run, seen in self._last.items() if run in runs}
