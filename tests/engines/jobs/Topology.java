import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;
import org.apache.storm.Config;
import org.apache.storm.StormSubmitter;
import org.apache.storm.shade.net.minidev.json.JSONValue;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.BoltDeclarer;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/**
 * A workload file (bench/workloads) as a Storm topology, for tests and benchmarks.
 *
 * <p>A tuple is the moment (System.nanoTime, CLOCK_MONOTONIC on Linux) at which its first ancestor
 * was due. The source is open loop, with Poisson arrivals: what it could not emit in time it emits
 * later, so the latency at the egress counts the backlog that waits outside of the engine.
 *
 * <p>Arguments: name= graph= (file) query= (of the file's, only this one) base_cost_us= (not the
 * file's) rate= (source tuples a second, or 0) rate_file= (read four times
 * a second, overrides rate) out= (folder for a file an egress) ack=1 executors.OP= tasks.OP=
 * lock.OP= (ms that it sleeps with each tuple, not as the file says: while it holds a lock that all
 * executors of a worker share) conf.KEY= (JSON)
 */
public final class Topology {
    private Topology() {}

    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static volatile long kept;

    /** Uses CPU time of its own thread, so that preemption does not change a tuple's cost. */
    private static void burn(long nanos) {
        if (nanos <= 0) {
            return;
        }
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

    /** Emits at the moments of a Poisson process. */
    public static final class Source extends BaseRichSpout {
        private final long nanos;
        private final double startRate;
        private final String rateFile;
        private final boolean ack;
        private transient SpoutOutputCollector collector;
        private transient SplittableRandom random;
        private transient double rate;
        private transient double due;
        private transient long looked;
        private transient long count;

        Source(long nanos, double rate, String rateFile, boolean ack) {
            this.nanos = nanos;
            this.startRate = rate;
            this.rateFile = rateFile;
            this.ack = ack;
        }

        @Override
        public void open(
                Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
            random = new SplittableRandom(1);
            rate = startRate;
            due = System.nanoTime();
        }

        @Override
        public void nextTuple() {
            long now = System.nanoTime();
            if (now - looked > 250_000_000L) {
                looked = now;
                look(now);
            }
            if (rate <= 0 || now < due) {
                return;
            }
            burn(nanos);
            Values values = new Values((long) due);
            due += -Math.log(1 - random.nextDouble()) * 1e9 / rate;
            count++;
            if (ack) {
                collector.emit(values, count);
            } else {
                collector.emit(values);
            }
        }

        /** A new rate starts now, with the same arrivals each time: what was due is forgotten. */
        private void look(long now) {
            if (rateFile.isEmpty()) {
                return;
            }
            try {
                double wanted = Double.parseDouble(Files.readString(Path.of(rateFile)).trim());
                if (wanted != rate) {
                    rate = wanted;
                    random = new SplittableRandom(1);
                    due = now;
                }
            } catch (IOException | NumberFormatException error) {
                // Just being written: the next look finds it.
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("due"));
        }
    }

    /** Burns its cost, may sleep, and emits as often as its selectivity says. */
    public static final class Operator extends BaseRichBolt {
        private static final Object LOCK = new Object();
        private final long nanos;
        private final long blockNanos;
        private final long lockNanos;
        private final double selectivity;
        private final String file;
        private final boolean ack;
        private transient OutputCollector collector;
        private transient DataOutputStream out;
        private transient double owed;
        private transient long flushed;

        /**
         * blockNanos: it sleeps for up to that with each tuple. lockNanos: instead, for so long with
         * the lock. file: where an egress writes (finished, due) of each tuple; "" for others.
         */
        Operator(
                long nanos,
                long blockNanos,
                long lockNanos,
                double selectivity,
                String file,
                boolean ack) {
            this.nanos = nanos;
            this.blockNanos = blockNanos;
            this.lockNanos = lockNanos;
            this.selectivity = selectivity;
            this.file = file;
            this.ack = ack;
        }

        @Override
        public void prepare(
                Map<String, Object> conf, TopologyContext context, OutputCollector collector) {
            this.collector = collector;
            if (!file.isEmpty()) {
                try {
                    out =
                            new DataOutputStream(
                                    new BufferedOutputStream(
                                            new FileOutputStream(
                                                    file + "." + context.getThisTaskId(), true),
                                            1 << 16));
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            }
        }

        @Override
        public void execute(Tuple tuple) {
            burn(nanos);
            if (lockNanos > 0) {
                synchronized (LOCK) {
                    LockSupport.parkNanos(lockNanos);
                }
            } else if (blockNanos > 0) {
                LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(blockNanos));
            }
            long due = tuple.getLong(0);
            if (out != null) {
                record(due);
            } else {
                for (owed += selectivity; owed >= 1; owed -= 1) {
                    if (ack) {
                        collector.emit(tuple, new Values(due));
                    } else {
                        collector.emit(new Values(due));
                    }
                }
            }
            if (ack) {
                collector.ack(tuple);
            }
        }

        private void record(long due) {
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

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            if (out == null) {
                declarer.declare(new Fields("due"));
            }
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
        Config config = new Config();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            if (parts[0].startsWith("conf.")) {
                config.put(parts[0].substring(5), JSONValue.parse(parts[1]));
            } else {
                given.put(parts[0], parts[1]);
            }
        }
        boolean ack = given.getOrDefault("ack", "0").equals("1");
        config.putIfAbsent(Config.TOPOLOGY_WORKERS, 1);
        config.putIfAbsent(Config.TOPOLOGY_ACKER_EXECUTORS, ack ? 1 : 0);

        double base = 50;
        boolean wanted = true;
        Map<String, String[]> operators = new LinkedHashMap<>();
        List<String[]> edges = new ArrayList<>();
        Set<String> emitting = new HashSet<>();
        for (String line : Files.readAllLines(Path.of(given.get("graph")))) {
            String[] words = line.replaceFirst("#.*", "").trim().split("\\s+");
            if (words[0].equals("workload")) {
                base = number(words, "base_cost_us", base);
                base = Double.parseDouble(given.getOrDefault("base_cost_us", "" + base));
            } else if (words[0].equals("query")) {
                wanted = words[1].equals(given.getOrDefault("query", words[1]));
            } else if (!wanted) {
                continue;
            } else if (words[0].equals("op")) {
                operators.put(words[1], words);
            } else if (words[0].equals("edge")) {
                edges.add(words);
                emitting.add(words[1]);
            }
        }

        TopologyBuilder builder = new TopologyBuilder();
        for (Map.Entry<String, String[]> operator : operators.entrySet()) {
            String name = operator.getKey();
            long nanos = (long) (number(operator.getValue(), "cost", 1) * base * 1000);
            long block = (long) (number(operator.getValue(), "block_max_ms", 0) * 1e6);
            long lock = (long) (1e6 * Double.parseDouble(given.getOrDefault("lock." + name, "0")));
            int executors = Integer.parseInt(given.getOrDefault("executors." + name, "1"));
            String tasks = given.getOrDefault("tasks." + name, Integer.toString(executors));
            List<String> inputs = new ArrayList<>();
            for (String[] edge : edges) {
                if (edge[2].equals(name)) {
                    inputs.add(edge[1]);
                }
            }
            if (inputs.isEmpty()) {
                double rate = Double.parseDouble(given.getOrDefault("rate", "0"));
                builder.setSpout(
                        name, new Source(nanos, rate, given.getOrDefault("rate_file", ""), ack), 1);
                continue;
            }
            String file =
                    emitting.contains(name) || !given.containsKey("out")
                            ? ""
                            : given.get("out") + "/" + name;
            double selectivity =
                    emitting.contains(name) ? number(operator.getValue(), "selectivity", 1) : 0;
            BoltDeclarer bolt =
                    builder.setBolt(
                            name,
                            new Operator(nanos, block, lock, selectivity, file, ack),
                            executors);
            bolt.setNumTasks(Integer.parseInt(tasks));
            for (String input : inputs) {
                bolt.shuffleGrouping(input);
            }
        }
        StormSubmitter.submitTopology(
                given.getOrDefault("name", "t"), config, builder.createTopology());
    }
}
