import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * A workload file (bench/workloads) in the form of a Liebre query, for benchmarks: a thread an
 * operator, called as it is. Who finds no input sleeps for 1 ms, then for twice as long each time,
 * 10 ms at most, as Liebre's streams do; so does who writes to a stream of 10,000 tuples. Liebre
 * itself is in no package registry.
 *
 * <p>A tuple is the moment (System.nanoTime, CLOCK_MONOTONIC on Linux) at which its first ancestor
 * was due. The source is open loop, with Poisson arrivals.
 *
 * <p>Arguments: graph= (file) rate_file= (source tuples a second, read four times a second) out=
 * (folder for a file an egress) period_ms= (of reports to Graphite's port 2013, by Dropwizard's
 * names).
 */
public final class LiebreQuery {
    private LiebreQuery() {}

    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final int CAPACITY = 10_000;
    private static volatile long kept;

    /** Uses CPU time of its own thread, so that preemption does not change a tuple's cost. */
    private static void burn(long nanos) {
        long end = THREADS.getCurrentThreadCpuTime() + nanos;
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

    /** Sleeps for longer each time, until there was something to do. */
    static final class Backoff {
        private long millis = 1;

        void sleep() throws InterruptedException {
            Thread.sleep(millis);
            millis = Math.min(10, 2 * millis);
        }

        void relax() {
            millis = 1;
        }
    }

    /** From one operator to the next. Its counts start anew each time that they are read. */
    static final class Stream {
        final AtomicLong in = new AtomicLong();
        final AtomicLong out = new AtomicLong();
        private final ConcurrentLinkedQueue<Long> tuples = new ConcurrentLinkedQueue<>();
        private final AtomicLong size = new AtomicLong();
        private final Backoff full = new Backoff();

        void add(long tuple) throws InterruptedException {
            while (size.get() >= CAPACITY) {
                full.sleep();
            }
            full.relax();
            size.incrementAndGet();
            in.incrementAndGet();
            tuples.add(tuple);
        }

        Long poll() {
            Long tuple = tuples.poll();
            if (tuple != null) {
                size.decrementAndGet();
                out.incrementAndGet();
            }
            return tuple;
        }
    }

    /** What an operator does for ever. */
    interface Body {
        void run() throws InterruptedException, IOException;
    }

    private static void start(String name, Body body) {
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                body.run();
                            } catch (InterruptedException | IOException error) {
                                throw new IllegalStateException(error);
                            }
                        },
                        name);
        thread.start();
    }

    private static void source(long nanos, Path rateFile, List<Stream> outputs)
            throws InterruptedException {
        SplittableRandom random = new SplittableRandom(1);
        double rate = 0;
        double due = 0;
        long looked = 0;
        while (true) {
            long now = System.nanoTime();
            if (now - looked > 250_000_000L) {
                looked = now;
                double wanted = wanted(rateFile, rate);
                if (wanted != rate) { // the same arrivals each time: what was due is forgotten
                    rate = wanted;
                    random = new SplittableRandom(1);
                    due = now;
                }
            }
            if (rate <= 0 || now < due) {
                long wait = rate <= 0 ? 10_000_000L : (long) due - now;
                LockSupport.parkNanos(Math.min(10_000_000L, wait));
                continue;
            }
            burn(nanos);
            for (Stream output : outputs) {
                output.add((long) due);
            }
            due += -Math.log(1 - random.nextDouble()) * 1e9 / rate;
        }
    }

    private static double wanted(Path rateFile, double otherwise) {
        try {
            return Double.parseDouble(Files.readString(rateFile).trim());
        } catch (IOException | NumberFormatException beingWritten) {
            return otherwise;
        }
    }

    private static void operator(
            long nanos, double selectivity, List<Stream> inputs, List<Stream> outputs, Path file)
            throws InterruptedException, IOException {
        DataOutputStream out =
                outputs.isEmpty()
                        ? new DataOutputStream(
                                new BufferedOutputStream(
                                        new FileOutputStream(file.toFile()), 1 << 16))
                        : null;
        Backoff backoff = new Backoff();
        double owed = 0;
        long flushed = 0;
        while (true) {
            boolean found = false;
            for (Stream input : inputs) {
                Long tuple = input.poll();
                if (tuple == null) {
                    continue;
                }
                found = true;
                burn(nanos);
                for (owed += selectivity; owed >= 1; owed -= 1) {
                    for (Stream output : outputs) {
                        output.add(tuple);
                    }
                }
                if (out != null) {
                    long now = System.nanoTime();
                    out.writeLong(now);
                    out.writeLong(tuple);
                    if (now - flushed > 100_000_000L) {
                        flushed = now;
                        out.flush();
                    }
                }
            }
            if (found) {
                backoff.relax();
            } else {
                backoff.sleep();
            }
        }
    }

    private static void report(Iterable<String> operators, Map<String, Stream> streams) {
        StringBuilder text = new StringBuilder();
        String end = " " + System.currentTimeMillis() / 1000 + "\n";
        streams.forEach(
                (name, stream) -> {
                    text.append("q." + name + ".IN.count " + stream.in.getAndSet(0) + end);
                    text.append("q." + name + ".OUT.count " + stream.out.getAndSet(0) + end);
                });
        for (String operator : operators) {
            text.append("q." + operator + ".EXEC.mean 0.00" + end);
        }
        try (Socket socket = new Socket("127.0.0.1", 2013)) {
            socket.getOutputStream().write(text.toString().getBytes(StandardCharsets.UTF_8));
            socket.getOutputStream().flush();
        } catch (IOException nobody) {
            return; // as the reporter does: what was read is lost
        }
    }

    private static double number(String[] words, String key, double otherwise) {
        for (String word : words) {
            if (word.startsWith(key + "=")) {
                return Double.parseDouble(word.substring(key.length() + 1));
            }
        }
        return otherwise;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            given.put(parts[0], parts[1]);
        }
        double base = 50;
        Map<String, String[]> operators = new LinkedHashMap<>();
        Map<String, List<Stream>> inputs = new HashMap<>();
        Map<String, List<Stream>> outputs = new HashMap<>();
        Map<String, Stream> streams = new LinkedHashMap<>();
        for (String line : Files.readAllLines(Path.of(given.get("graph")))) {
            String[] words = line.replaceFirst("#.*", "").trim().split("\\s+");
            if (words[0].equals("workload")) {
                base = number(words, "base_cost_us", base);
            } else if (words[0].equals("op")) {
                operators.put(words[1], words);
                inputs.put(words[1], new ArrayList<>());
                outputs.put(words[1], new ArrayList<>());
            } else if (words[0].equals("edge")) {
                Stream stream = new Stream();
                outputs.get(words[1]).add(stream);
                inputs.get(words[2]).add(stream);
                streams.put(words[1] + "_" + words[2], stream);
            }
        }
        for (Map.Entry<String, String[]> operator : operators.entrySet()) {
            String name = operator.getKey();
            long nanos = (long) (number(operator.getValue(), "cost", 1) * base * 1000);
            double selectivity = number(operator.getValue(), "selectivity", 1);
            if (inputs.get(name).isEmpty()) {
                Path rateFile = Path.of(given.get("rate_file"));
                start(name, () -> source(nanos, rateFile, outputs.get(name)));
                continue;
            }
            Path file = Path.of(given.get("out"), name);
            start(
                    name,
                    () -> operator(nanos, selectivity, inputs.get(name), outputs.get(name), file));
        }
        long period = Long.parseLong(given.getOrDefault("period_ms", "250"));
        start(
                "metrics-graphite-reporter-1-thread-1",
                () -> {
                    while (true) {
                        Thread.sleep(period);
                        report(operators.keySet(), streams);
                    }
                });
        System.out.println("ready");
    }
}
