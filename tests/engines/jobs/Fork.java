import common.metrics.Metrics;
import component.operator.Operator;
import component.operator.in1.map.MapFunction;
import component.operator.router.RouterOperator;
import component.sink.Sink;
import component.sink.SinkFunction;
import component.source.Source;
import component.source.SourceFunction;
import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.SplittableRandom;
import java.util.concurrent.locks.LockSupport;
import query.LiebreContext;
import query.Query;

/**
 * bench/workloads/fork.graph as a Liebre query, for tests and benchmarks.
 *
 * <p>Each branch has a sink of its own: Liebre's union sleeps on the input that is empty, and so
 * holds the other up. A tuple is the moment (System.nanoTime) at which it was due; the source is open
 * loop, with Poisson arrivals, as that of Topology.java.
 *
 * <p>Arguments: the folder for Liebre's metrics, the folder in which each sink writes (finished, due)
 * of each tuple, and the file with the arrivals a second, which is read four times a second.
 */
public final class Fork {
    private Fork() {}

    private static final double COST_NANOS = 40_000; // fork.graph's base cost
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static volatile long kept;

    /** Uses CPU time of its own thread, so that preemption does not change a tuple's cost. */
    private static void burn(double cost) {
        long end = THREADS.getCurrentThreadCpuTime() + (long) (cost * COST_NANOS);
        long state = end | 1;
        do {
            for (int i = 0; i < 200; i++) {
                state ^= state << 13;
                state ^= state >>> 7;
                state ^= state << 17;
            }
        } while (THREADS.getCurrentThreadCpuTime() < end);
        kept = state;
    }

    /** Emits at the moments of a Poisson process; a new rate begins anew, and what was due is gone. */
    private static final class Arrivals implements SourceFunction<Long> {
        private static final long LOOK_NANOS = 250_000_000;
        private final Path file;
        private SplittableRandom random;
        private double rate;
        private double due;
        private long looked;

        Arrivals(String file) {
            this.file = Path.of(file);
        }

        @Override
        public Long get() {
            long now = System.nanoTime();
            if (now - looked > LOOK_NANOS) {
                looked = now;
                look(now);
            }
            if (rate <= 0 || now < due) {
                double wait = rate > 0 ? due - now : LOOK_NANOS;
                LockSupport.parkNanos((long) Math.min(wait, LOOK_NANOS));
                return null;
            }
            burn(0.5);
            long own = (long) due;
            due += -Math.log(1 - random.nextDouble()) * 1e9 / rate;
            return own;
        }

        private void look(long now) {
            try {
                double wanted = Double.parseDouble(Files.readString(file).trim());
                if (wanted != rate) {
                    rate = wanted;
                    random = new SplittableRandom(1);
                    due = now;
                }
            } catch (IOException | NumberFormatException error) {
                // Just being written: the next look finds it.
            }
        }
    }

    private static final class Written implements SinkFunction<Long> {
        private final DataOutputStream out;
        private long flushed;

        Written(Path file) throws IOException {
            out =
                    new DataOutputStream(
                            new BufferedOutputStream(new FileOutputStream(file.toFile()), 1 << 16));
        }

        @Override
        public void accept(Long due) {
            burn(0.8); // a join's and a sink's
            long now = System.nanoTime();
            try {
                out.writeLong(now);
                out.writeLong(due);
                if (now - flushed > 100_000_000L) {
                    flushed = now;
                    out.flush();
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private static MapFunction<Long, Long> work(double cost) {
        return due -> {
            burn(cost);
            return due;
        };
    }

    /** Every second tuple goes on. */
    private static MapFunction<Long, Long> half(double cost) {
        long[] seen = {0};
        return due -> {
            burn(cost);
            return ++seen[0] % 2 == 0 ? due : null;
        };
    }

    public static void main(String[] arguments) throws IOException {
        LiebreContext.setOperatorMetrics(Metrics.file(arguments[0]));
        LiebreContext.setStreamMetrics(Metrics.file(arguments[0]));
        Path out = Path.of(arguments[1]);
        Query query = new Query();
        Source<Long> source = query.addBaseSource("source", new Arrivals(arguments[2]));
        Operator<Long, Long> parse = query.addMapOperator("parse", work(1));
        Operator<Long, Long> heavy = query.addMapOperator("heavy", work(5));
        Operator<Long, Long> agg = query.addMapOperator("agg", half(0.5));
        Operator<Long, Long> light = query.addMapOperator("light", work(1));
        Operator<Long, Long> enrich = query.addMapOperator("enrich", work(1));
        Operator<Long, Long> pick = query.addMapOperator("pick", half(0.5));
        RouterOperator<Long> split = query.addRouterOperator("split");
        Sink<Long> slow = query.addBaseSink("slow", new Written(out.resolve("heavy/slow")));
        Sink<Long> fast = query.addBaseSink("fast", new Written(out.resolve("light/fast")));
        query.connect(source, parse).connect(parse, pick).connect(pick, split);
        query.connect(split, heavy).connect(heavy, agg).connect(agg, slow);
        query.connect(split, light).connect(light, enrich).connect(enrich, fast);
        query.activate();
    }
}
