import java.io.BufferedReader;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFilterFunction;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.operators.SlotSharingGroup;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.CoMapFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;

/**
 * A query for tests and benchmarks: src > parse > work (parallel) > egress > sink, or with
 * shape=fork: src > parse > {work, side} > egress > sink, or with shape=join: work and side feed the
 * two inputs of a join (side one record in ten), by key, as the joins of SQL are fed. With far_us=N
 * there is an operator `far` before the egress, and both run where there is a resource "far", the
 * others where there is "near".
 *
 * <p>A record is the moment (System.nanoTime, CLOCK_MONOTONIC on Linux) at which it was due. The
 * source is open loop: record i is due at start + i / rate whatever back-pressure did to those
 * before, so the latency at the egress counts the backlog that waits outside the engine.
 */
public final class Query {
    private Query() {}

    /** Start of each job, kept for the whole process: the rate limiter and the generator share it. */
    private static final Map<String, Long> STARTS = new ConcurrentHashMap<>();

    /** Of each job, which record comes next: after a restart from a checkpoint not the first. */
    private static final Map<String, Long> NEXT = new ConcurrentHashMap<>();

    /** Poisson arrivals: offsets in ns of the first records of each job, the same in each run. */
    private static final Map<String, long[]> ARRIVALS = new ConcurrentHashMap<>();
    /** The pattern repeats after so many seconds, so that phases of that length see the same. */
    private static volatile double cycle = 4;

    private static long due(String job, double rate, long index) {
        long start = STARTS.computeIfAbsent(job, name -> System.nanoTime());
        if (rate >= 1e5) {
            return start + (long) (index / rate * 1e9);
        }
        long[] offsets =
                ARRIVALS.computeIfAbsent(
                        job,
                        name -> {
                            java.util.Random random = new java.util.Random(name.hashCode());
                            int count = (int) Math.max(1, Math.round(rate * cycle));
                            double[] gaps = new double[count];
                            double sum = 0;
                            for (int i = 0; i < count; i++) {
                                gaps[i] = -Math.log(1 - random.nextDouble());
                                sum += gaps[i];
                            }
                            long[] found = new long[count + 1];
                            double at = 0;
                            for (int i = 0; i < count; i++) {
                                found[i] = (long) at;
                                at += gaps[i] / sum * cycle * 1e9;
                            }
                            found[count] = (long) (cycle * 1e9);
                            return found;
                        });
        int count = offsets.length - 1;
        return start + offsets[(int) (index % count)] + index / count * offsets[count];
    }

    /** Gives the moment each record is due. start: when the first is; 0 = when the job begins. */
    static final class Due implements GeneratorFunction<Long, Long> {
        private final String job;
        private final double rate;
        private final long start;

        Due(String job, double rate, long start) {
            this.job = job;
            this.rate = rate;
            this.start = start;
        }

        @Override
        public void open(SourceReaderContext context) {
            if (start > 0) {
                STARTS.put(job, start);
            }
            due(job, rate, 0);
        }

        @Override
        public Long map(Long index) {
            NEXT.put(job, index + 1);
            return due(job, rate, index);
        }
    }

    /** Holds records back until they are due, and never longer. */
    static final class OpenLoop implements RateLimiterStrategy {
        private transient ScheduledThreadPoolExecutor timer;
        private final String job;
        private final double rate;

        OpenLoop(String job, double rate) {
            this.job = job;
            this.rate = rate;
        }

        private synchronized ScheduledThreadPoolExecutor timer() {
            if (timer == null) {
                String name = "Source Data Fetcher for " + Thread.currentThread().getName();
                timer =
                        new ScheduledThreadPoolExecutor(
                                1,
                                task -> {
                                    Thread thread = new Thread(task, name);
                                    thread.setDaemon(true);
                                    return thread;
                                });
                timer.prestartCoreThread();
            }
            return timer;
        }

        @Override
        public RateLimiter<SourceSplit> createRateLimiter(int parallelism) {
            return new RateLimiter<SourceSplit>() {
                @Override
                public CompletionStage<Void> acquire(int records) {
                    long index = NEXT.getOrDefault(job, 0L);
                    long wait = due(job, rate, index) - System.nanoTime();
                    if (wait <= 0) {
                        return CompletableFuture.completedFuture(null);
                    }
                    CompletableFuture<Void> ready = new CompletableFuture<>();
                    timer().schedule(() -> ready.complete(null), wait, TimeUnit.NANOSECONDS);
                    return ready;
                }
            };
        }
    }

    /** A source of the old kind that sleeps until the next record is due. */
    static final class Paced implements SourceFunction<Long> {
        private final String job;
        private final double rate;
        private volatile boolean ended;

        Paced(String job, double rate) {
            this.job = job;
            this.rate = rate;
        }

        @Override
        public void run(SourceContext<Long> context) throws Exception {
            for (long index = 0; !ended; index++) {
                long due = due(job, rate, index);
                TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                synchronized (context.getCheckpointLock()) {
                    context.collect(due);
                }
            }
        }

        @Override
        public void cancel() {
            ended = true;
        }
    }

    /** Uses CPU time of its own thread, so that preemption does not change a tuple's cost. */
    static final class Burn implements MapFunction<Long, Long> {
        private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
        private static volatile long kept;
        private final long nanos;

        Burn(double micros) {
            nanos = (long) (micros * 1000);
        }

        @Override
        public Long map(Long record) {
            if (nanos > 0) {
                long end = THREADS.getCurrentThreadCpuTime() + nanos;
                long state = record | 1;
                do {
                    for (int i = 0; i < 300; i++) {
                        state ^= state << 13;
                        state ^= state >>> 7;
                        state ^= state << 17;
                    }
                } while (THREADS.getCurrentThreadCpuTime() < end);
                kept = state;
            }
            return record;
        }
    }

    /** Sleeps for each record, while it holds what all of its kind need. */
    static final class Guarded implements MapFunction<Long, Long> {
        private static final Object LOCK = new Object();
        private final long millis;

        Guarded(long millis) {
            this.millis = millis;
        }

        @Override
        public Long map(Long record) throws InterruptedException {
            synchronized (LOCK) {
                Thread.sleep(millis);
            }
            return record;
        }
    }

    /** Has another process answer each record, as PyFlink does; it is this task that starts it. */
    static final class Asked extends RichMapFunction<Long, Long> {
        private final String command;
        private transient Process process;
        private transient BufferedReader answers;
        private transient PrintWriter questions;

        Asked(String command) {
            this.command = command;
        }

        @Override
        public void open(OpenContext context) throws Exception {
            process = new ProcessBuilder("sh", "-c", command).start();
            answers = process.inputReader();
            questions = new PrintWriter(process.outputWriter(), true);
        }

        @Override
        public Long map(Long record) throws Exception {
            questions.println(record);
            return Long.valueOf(answers.readLine());
        }

        @Override
        public void close() {
            if (process != null) {
                questions.close();
            }
        }
    }

    /** Lets a part of the records pass, by the moment they were due. */
    static final class Select extends RichFilterFunction<Long> {
        private final Burn burn;
        private final double part;

        Select(double micros, double part) {
            burn = new Burn(micros);
            this.part = part;
        }

        @Override
        public boolean filter(Long record) {
            burn.map(record);
            long mixed = record * 0x9E3779B97F4A7C15L;
            return (mixed >>> 11) * 0x1.0p-53 < part;
        }
    }

    static final class EveryTenth implements FilterFunction<Long> {
        private transient long count;

        @Override
        public boolean filter(Long record) {
            return count++ % 10 == 0;
        }
    }

    /** Passes on what comes from either side. */
    static final class Either implements CoMapFunction<Long, Long, Long> {
        @Override
        public Long map1(Long record) {
            return record;
        }

        @Override
        public Long map2(Long record) {
            return record;
        }
    }

    /** Throws once, soon after the file appears, which it takes away. */
    static final class Fail implements FilterFunction<Long> {
        private final String file;
        private transient long count;

        Fail(String file) {
            this.file = file;
        }

        @Override
        public boolean filter(Long record) throws Exception {
            if (count++ % 50 == 0 && Files.deleteIfExists(Path.of(file))) {
                throw new IllegalStateException("told to fail by " + file);
            }
            return true;
        }
    }

    /**
     * Writes a line "finished due" (both nanoseconds) for every n-th record; lets all pass. May
     * sleep for each, as one does that waits for an answer from elsewhere.
     */
    static final class Egress extends RichFilterFunction<Long> {
        private final String file;
        private final int every;
        private final long blockMillis;
        private transient PrintWriter lines;
        private transient long count;
        private transient long flushed;

        Egress(String file, int every, long blockMillis) {
            this.file = file;
            this.every = every;
            this.blockMillis = blockMillis;
        }

        @Override
        public void open(OpenContext context) throws Exception {
            lines = file.isEmpty() ? null : new PrintWriter(file);
        }

        @Override
        public boolean filter(Long record) throws InterruptedException {
            if (blockMillis > 0) {
                Thread.sleep(blockMillis);
            }
            if (count++ % every == 0 && lines != null) {
                long now = System.nanoTime();
                lines.append(Long.toString(now)).append(' ').append(record.toString()).append('\n');
                if (now - flushed > 100_000_000L) {
                    flushed = now;
                    lines.flush();
                }
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

    /** On a TaskManager that has this resource. */
    private static SlotSharingGroup placed(String resource) {
        return SlotSharingGroup.newBuilder(resource)
                .setCpuCores(0.1)
                .setTaskHeapMemoryMB(16)
                .setExternalResource(resource, 1.0)
                .build();
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            given.put(parts[0], parts[1]);
        }
        String job = given.getOrDefault("name", "q");
        String prefix = given.getOrDefault("prefix", job + "-");
        double rate = Double.parseDouble(given.getOrDefault("rate", "1000"));
        long records = Long.parseLong(given.getOrDefault("records", "1000000000"));
        int parallelism = Integer.parseInt(given.getOrDefault("parallelism", "1"));
        long start = Long.parseLong(given.getOrDefault("start", "0"));
        double parseMicros = Double.parseDouble(given.getOrDefault("parse_us", "5"));
        double part = Double.parseDouble(given.getOrDefault("part", "1"));
        double workMicros = Double.parseDouble(given.getOrDefault("work_us", "20"));
        long lockMillis = Long.parseLong(given.getOrDefault("lock_ms", "0"));
        long blockMillis = Long.parseLong(given.getOrDefault("block_ms", "0"));

        Configuration settings = new Configuration();
        settings.setString(
                "execution.buffer-timeout.interval", given.getOrDefault("buffer_timeout", "1 ms"));
        settings.setString(
                "pipeline.operator-chaining.enabled", given.getOrDefault("chain", "false"));
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(1);
        if (given.containsKey("checkpoint_ms")) {
            environment.enableCheckpointing(Long.parseLong(given.get("checkpoint_ms")));
        }
        DataStream<Long> made =
                given.getOrDefault("source", "new").equals("paced")
                        ? environment
                                .addSource(new Paced(job, rate), prefix + "src")
                                .returns(Types.LONG)
                        : environment.fromSource(
                                new DataGeneratorSource<>(
                                        new Due(job, rate, start),
                                        records,
                                        new OpenLoop(job, rate),
                                        Types.LONG),
                                WatermarkStrategy.noWatermarks(),
                                prefix + "src");
        double farMicros = Double.parseDouble(given.getOrDefault("far_us", "-1"));
        if (farMicros >= 0) {
            ((SingleOutputStreamOperator<Long>) made).slotSharingGroup(placed("near"));
        }
        DataStream<Long> parsed =
                made.filter(new Select(parseMicros, part)).name(prefix + "parse");
        if (given.getOrDefault("shuffle", "false").equals("true")) {
            parsed = parsed.rebalance();
        }
        DataStream<Long> worked =
                parsed.map(lockMillis > 0 ? new Guarded(lockMillis) : new Burn(workMicros))
                        .setParallelism(parallelism)
                        .name(prefix + "work");
        if (given.getOrDefault("shape", "line").equals("fork")) {
            worked = worked.union(parsed.map(new Burn(workMicros)).name(prefix + "side"));
        }
        if (given.getOrDefault("shape", "line").equals("join")) {
            DataStream<Long> side = parsed.filter(new EveryTenth()).name(prefix + "side");
            worked =
                    worked.keyBy(record -> record % 8)
                            .connect(side.keyBy(record -> record % 8))
                            .map(new Either())
                            .name(prefix + "join");
        }
        if (given.containsKey("ask")) {
            worked = worked.map(new Asked(given.get("ask"))).name(prefix + "ask");
        }
        if (given.containsKey("fail")) {
            worked = worked.filter(new Fail(given.get("fail"))).name(prefix + "fail");
        }
        if (farMicros >= 0) {
            worked =
                    worked.map(new Burn(farMicros))
                            .name(prefix + "far")
                            .slotSharingGroup(placed("far"));
        }
        worked.filter(
                        new Egress(
                                given.getOrDefault("out", ""),
                                Integer.parseInt(given.getOrDefault("every", "1")),
                                blockMillis))
                .name(prefix + "egress")
                .sinkTo(new DiscardingSink<>())
                .name(prefix + "sink");
        environment.execute(job);
    }
}
