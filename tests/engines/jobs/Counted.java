import java.io.FileWriter;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFilterFunction;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * A query that counts: src > work (parallel, sleeps for each record) > count (by key, kept as state)
 * > egress > sink. What it counted tells whether a restart lost or repeated anything.
 */
public final class Counted {
    private Counted() {}

    /** As many records a second as a file says; what was held back for longer than a lag is lost. */
    static final class ByFile implements RateLimiterStrategy {
        private static final ScheduledThreadPoolExecutor TIMER = timer();
        private final String file;
        private final long lag;

        private static ScheduledThreadPoolExecutor timer() {
            ScheduledThreadPoolExecutor made =
                    new ScheduledThreadPoolExecutor(
                            1,
                            task -> {
                                Thread thread = new Thread(task, "rate");
                                thread.setDaemon(true);
                                return thread;
                            });
            made.prestartCoreThread();
            return made;
        }

        ByFile(String file, double millis) {
            this.file = file;
            lag = (long) (millis * 1e6);
        }

        @Override
        public RateLimiter createRateLimiter(int parallelism) {
            return new RateLimiter() {
                private long due = System.nanoTime();
                private long looked;
                private double rate = 1;

                @Override
                public CompletionStage<Void> acquire(int records) {
                    long now = System.nanoTime();
                    if (now - looked > 100_000_000L) {
                        looked = now;
                        try {
                            rate = Double.parseDouble(Files.readString(Path.of(file)).trim());
                        } catch (Exception error) {
                            // written just now: as before
                        }
                    }
                    due = Math.max(due + (long) (records * 1e9 / rate), now - lag);
                    long wait = due - now;
                    if (wait <= 0) {
                        return CompletableFuture.completedFuture(null);
                    }
                    CompletableFuture<Void> ready = new CompletableFuture<>();
                    TIMER.schedule(() -> ready.complete(null), wait, TimeUnit.NANOSECONDS);
                    return ready;
                }
            };
        }
    }

    static final class Sleep implements MapFunction<Long, Long> {
        private final long nanos;

        Sleep(double millis) {
            nanos = (long) (millis * 1e6);
        }

        @Override
        public Long map(Long record) throws InterruptedException {
            TimeUnit.NANOSECONDS.sleep(nanos);
            return record;
        }
    }

    static final class Count extends RichMapFunction<Long, Tuple3<Long, Long, Long>> {
        private transient ValueState<Long> state;

        @Override
        public void open(OpenContext context) {
            state =
                    getRuntimeContext()
                            .getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public Tuple3<Long, Long, Long> map(Long record) throws Exception {
            Long before = state.value();
            long count = before == null ? 1 : before + 1;
            state.update(count);
            return Tuple3.of(record % 64, count, record);
        }
    }

    /** Appends a line "now key count record" for each record (now in ns). */
    static final class Egress extends RichFilterFunction<Tuple3<Long, Long, Long>> {
        private final String file;
        private transient PrintWriter lines;
        private transient long flushed;

        Egress(String file) {
            this.file = file;
        }

        @Override
        public void open(OpenContext context) throws Exception {
            lines = new PrintWriter(new FileWriter(file, true));
        }

        @Override
        public boolean filter(Tuple3<Long, Long, Long> counted) {
            long now = System.nanoTime();
            lines.append(now + " " + counted.f0 + " " + counted.f1 + " " + counted.f2 + "\n");
            if (now - flushed > 50_000_000L) {
                flushed = now;
                lines.flush();
            }
            return true;
        }

        @Override
        public void close() {
            if (lines != null) {
                lines.close();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            given.put(parts[0], parts[1]);
        }
        String job = given.get("name");
        Configuration settings = new Configuration();
        settings.setString("execution.buffer-timeout.interval", "1 ms");
        settings.setString("pipeline.operator-chaining.enabled", "false");
        settings.setString("execution.checkpointing.interval", "1 h");
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(1);
        environment
                .fromSource(
                        new DataGeneratorSource<>(
                                (GeneratorFunction<Long, Long>) index -> index,
                                Long.MAX_VALUE,
                                new ByFile(
                                        given.get("rate_file"),
                                        Double.parseDouble(given.getOrDefault("lag_ms", "0"))),
                                Types.LONG),
                        WatermarkStrategy.noWatermarks(),
                        job + "-src")
                .rebalance()
                .map(new Sleep(Double.parseDouble(given.get("sleep_ms"))))
                .setParallelism(Integer.parseInt(given.getOrDefault("parallelism", "1")))
                .name(job + "-work")
                .keyBy(record -> record % 64)
                .map(new Count())
                .name(job + "-count")
                .filter(new Egress(given.get("out")))
                .name(job + "-egress")
                .sinkTo(new DiscardingSink<>())
                .name(job + "-sink");
        environment.execute(job);
    }
}
