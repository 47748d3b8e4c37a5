import java.io.FileWriter;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintWriter;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Three threads that are named, and that count, as Liebre's do: source > map_1 > sink, of which the
 * sink takes a fraction of what comes. Liebre itself is in no package registry.
 *
 * <p>Arguments: "files" FOLDER, or "graphite" PORT PREFIX. Ends when its input does, and then prints
 * what was added to and taken from each stream.
 */
public final class LiebreWriter {
    private LiebreWriter() {}

    /** A count of one kind at one end of a stream. */
    interface Count {
        void one() throws IOException;
    }

    /** A line a second, written when the first event of a later second comes. */
    static final class FileCount implements Count {
        private final PrintWriter out;
        private long second = System.currentTimeMillis() / 1000;
        private long count;

        FileCount(Path file) throws IOException {
            out = new PrintWriter(new FileWriter(file.toFile()), true);
        }

        @Override
        public void one() {
            for (long now = System.currentTimeMillis() / 1000; second < now; second++) {
                out.println(second + "," + count);
                count = 0;
            }
            count++;
        }
    }

    /** Starts anew each time that it is read. */
    static final class ResettingCount implements Count {
        final AtomicLong count = new AtomicLong();

        @Override
        public void one() {
            count.incrementAndGet();
        }
    }

    private static final Map<String, Count> COUNTS = new LinkedHashMap<>();
    private static final Map<String, AtomicLong> TRUTH = new LinkedHashMap<>();

    private static void count(String name) throws IOException {
        COUNTS.get(name).one();
        TRUTH.get(name).incrementAndGet();
    }

    /** As Liebre's streams are read: who finds nothing sleeps, from 1 to 10 ms, and looks again. */
    private static void taken(LinkedBlockingQueue<Integer> queue) throws InterruptedException {
        for (long millis = 1; queue.poll() == null; millis = Math.min(10, 2 * millis)) {
            Thread.sleep(millis);
        }
    }

    /** Takes from `from`, waits, gives to `to`, so many each time. */
    private static void operator(String name, String from, String to, long millis, int times) {
        Thread thread =
                new Thread(
                        () -> {
                            try {
                                while (true) {
                                    if (from != null) {
                                        taken(QUEUES.get(from));
                                        count(from + ".OUT");
                                    }
                                    Thread.sleep(millis);
                                    for (int i = 0; to != null && i < times; i++) {
                                        count(to + ".IN");
                                        QUEUES.get(to).put(1);
                                    }
                                }
                            } catch (InterruptedException | IOException end) {
                                return;
                            }
                        },
                        name);
        thread.setDaemon(true);
        thread.start();
    }

    private static final Map<String, LinkedBlockingQueue<Integer>> QUEUES = new LinkedHashMap<>();

    private static void report(int port, String prefix) throws IOException {
        StringBuilder text = new StringBuilder();
        long now = System.currentTimeMillis() / 1000;
        for (Map.Entry<String, Count> entry : COUNTS.entrySet()) {
            long count = ((ResettingCount) entry.getValue()).count.getAndSet(0);
            text.append(prefix + "." + entry.getKey() + ".count " + count + " " + now + "\n");
        }
        for (String name : new String[] {"source", "map_1", "sink"}) {
            text.append(prefix + "." + name + ".EXEC.mean 11000000.00 " + now + "\n");
        }
        try (Socket socket = new Socket("127.0.0.1", port)) {
            OutputStream out = socket.getOutputStream();
            out.write(text.toString().getBytes(StandardCharsets.UTF_8));
            out.flush();
            socket.getInputStream(); // holds the connection a moment, as a longer report would
            Thread.sleep(20);
        } catch (IOException | InterruptedException nobody) {
            return; // as the reporter does: what was read is lost
        }
    }

    public static void main(String[] arguments) throws Exception {
        boolean files = arguments[0].equals("files");
        for (String stream : new String[] {"source_map_1", "map_1_sink"}) {
            QUEUES.put(stream, new LinkedBlockingQueue<>());
            for (String end : new String[] {".IN", ".OUT"}) {
                Path file = Path.of(arguments[1], stream + end + ".csv");
                COUNTS.put(stream + end, files ? new FileCount(file) : new ResettingCount());
                TRUTH.put(stream + end, new AtomicLong());
            }
        }
        if (files) {
            for (String name : new String[] {"source", "map_1", "sink"}) {
                new FileCount(Path.of(arguments[1], name + ".EXEC.csv"));
            }
        } else {
            int port = Integer.parseInt(arguments[1]);
            Thread reporter =
                    new Thread(
                            () -> {
                                try {
                                    while (true) {
                                        Thread.sleep(200);
                                        report(port, arguments[2]);
                                    }
                                } catch (InterruptedException | IOException end) {
                                    return;
                                }
                            },
                            "metrics-graphite-reporter-1-thread-1");
            reporter.setDaemon(true);
            reporter.start();
        }
        Thread helper = new Thread(() -> QUEUES.clear(), "Thread-0"); // a shutdown hook, as Liebre's
        Runtime.getRuntime().addShutdownHook(helper);
        operator("sink", "map_1_sink", null, 20, 1);
        operator("map_1", "source_map_1", "map_1_sink", 0, 1);
        operator("source", null, "source_map_1", 2, 5);
        System.out.println("ready");
        System.in.read();
        for (Map.Entry<String, AtomicLong> entry : TRUTH.entrySet()) {
            System.out.println(entry.getKey() + " " + entry.getValue());
        }
        Runtime.getRuntime().halt(0);
    }
}
