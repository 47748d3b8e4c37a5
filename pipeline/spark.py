"""A Spark of our own, or a cluster's; what is missing is said in words."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sched_ctl.errors import UserError, adding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check", "spark", "told"]

LEAST_JAVA = 17  # of Spark 4
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # A file is a row here: more of them in a batch would all be in memory at once.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
    # A task writes to the folders of many nodes: open that many files rather than sort all rows.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "200",
    # Few large files rather than one for each task, and no sort of all rows where groups are many.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    "spark.sql.legacy.castComplexTypesToString.enabled": "false",
    # Else each call of an expression looks for IPython, and asks Java four things, for an error's
    # line in our code.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
# The JVM's better compiler is for what runs long: a command would pay for code of which most is
# soon done with. Ten times HotSpot's own thresholds; other JVMs, and later ones, may not have them.
PATIENT = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 "
    "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
OURS = "spark.driver.defaultJavaOptions"  # before the user's own: `extraJavaOptions`
LOCAL = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def check() -> None:
    """Raises UserError where something is missing, and says what to do."""
    hint = f"in a checkout: {adding('fleet')}; gateways do not need it"
    try:
        import pandas
        import pyarrow
        import pyspark
    except ImportError as error:
        raise UserError(
            f"the fleet commands need {error.name}, which is not installed", hint
        ) from None
    del pyarrow
    if int(pyspark.__version__.split(".")[0]) < 4:
        raise UserError(f"pyspark {pyspark.__version__} is too old: 4.0 or newer is needed", hint)
    if int(pandas.__version__.split(".")[0]) >= 3:
        raise UserError(
            f"pandas {pandas.__version__} does not go with this Spark", "pip install 'pandas<3'"
        )
    _check_java()


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")  # noqa: PTH118
    what = f"Spark needs Java {LEAST_JAVA} or newer"
    do = "apt-get install default-jre-headless; JAVA_HOME chooses among several"
    try:
        done = subprocess.run(
            [java or "java", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        raise UserError(
            f"{what}, and there is none" + (f" at {java}" if java else ""), do
        ) from None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if match is None:
        raise UserError(f"{what}; {java} says {done.stderr.strip()[:200]!r}", do)
    if int(match[1]) < LEAST_JAVA:
        raise UserError(f"{what}; {java} is Java {match[1]}", do)


@contextmanager
def spark(
    name: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    stays: bool = False,
) -> Iterator["SparkSession"]:
    """A Spark for one command; it, and its scratch folder, end with the body.

    master: None = that of spark-submit or the configuration, else local[*]. settings: Spark's own,
    which win over ours. stays: the command runs for long. The scratch folder is in that of the
    system, or in `spark.local.dir`.
    """
    check()
    with ExitStack() as stack:
        yield stack.enter_context(_started(name, master, settings or {}, stack, stays=stays))


@contextmanager
def _started(
    name: str, master: str | None, settings: Mapping[str, str], stack: ExitStack, *, stays: bool
) -> Iterator["SparkSession"]:
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each end
    logging.getLogger().addFilter(_no_interrupt)
    # Its workers must have what we have, whatever `python3` in PATH is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    given = SparkConf()
    where = master or given.get("spark.master") or "local[*]"
    is_local = where.startswith("local")
    conf = {**DEFAULTS, **(LOCAL if is_local else {})}
    if is_local and not stays:
        conf[OURS] = PATIENT
    conf["spark.ui.showConsoleProgress"] = str(sys.stderr.isatty()).lower()
    builder = SparkSession.builder.appName(f"sched-ctl {name}").master(where)
    conf = {key: value for key, value in conf.items() if not given.contains(key)}
    conf |= {key: str(value) for key, value in settings.items()}
    if not os.environ.get("SPARK_LOCAL_DIRS"):  # which wins
        _scratch(conf, given, stack)
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        with _uninterrupted():
            made: SparkSession = builder.getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise UserError(
            f"Spark does not start: {error}", "the lines above are Spark's own"
        ) from error
    made.sparkContext.setLogLevel("ERROR")
    try:
        yield made
    except Exception as error:
        words = told(error)
        if words is None:
            raise
        raise words from error
    finally:
        _end(made)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have Ctrl-C wait while Spark starts: it would leave a JVM that nobody ends.

    What Spark would do itself at a Ctrl-C afterwards, cancel its jobs, its end does too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _no_interrupt(record: logging.LogRecord) -> bool:
    """False for what Py4J tells of a Ctrl-C, with a traceback."""
    return not record.getMessage().startswith("KeyboardInterrupt while sending")


def _scratch(conf: dict[str, str], given: Any, stack: ExitStack) -> None:
    """Name a folder of its own for what Spark leaves lying about when it is killed."""
    local = "spark.local.dir"
    parent = conf.get(local) or given.get(local)
    if parent and "," in parent:  # several disks: whoever says that knows best
        return
    try:
        if parent:
            Path(parent).mkdir(parents=True, exist_ok=True)
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="sched-ctl-fleet-", dir=parent, ignore_cleanup_errors=True
            )
        )
    except OSError as error:
        where = parent or tempfile.gettempdir()
        raise UserError(
            f"cannot write to {where}: {error.strerror}", "--conf spark.local.dir=DIR names another"
        ) from error
    conf[local] = folder
    # Libraries of Spark's unpack themselves into Java's own.
    conf[OURS] = f"-Djava.io.tmpdir={folder} {conf.get(OURS) or given.get(OURS) or ''}".strip()


def _end(made: "SparkSession") -> None:
    """Stop Spark, and wait for its JVM, so that nothing writes to the scratch folder any more."""
    from pyspark import SparkContext

    gateway: Any = made.sparkContext._gateway
    made.stop()
    process = getattr(gateway, "proc", None)
    if process is None:  # spark-submit started it
        return
    gateway.shutdown()
    process.stdin.close()  # at which it ends
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None


def told(error: BaseException) -> UserError | None:
    """An error of Spark's that the user can mend, in words; None for others."""
    text = str(error)
    if "No space left on device" in text or "DiskFull" in text:
        return UserError(
            "no space left on a disk that Spark writes to",
            "the output, or its scratch folder: --conf spark.local.dir=DIR",
        )
    if "OutOfMemoryError" in text:
        return UserError("Spark ran out of memory", "--conf spark.driver.memory=4g")
    if "No module named 'sched_ctl" in text:
        return UserError(
            "the workers of the cluster have no sched-ctl",
            "install the same version there, or name its Python: PYSPARK_PYTHON",
        )
    match = re.search(r"(PATH_NOT_FOUND|No FileSystem for scheme|UnknownHost)[^\n]*", text)
    return None if match is None else UserError(match[0][:300])
