import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/**
 * A sink connector that uses CPU time for each record: cost_us=. In a file of the folder out= each
 * task writes when it was done with a record, and when that was due (KafkaFeed).
 */
public final class KafkaWork extends SinkConnector {
    private Map<String, String> given;

    @Override
    public void start(Map<String, String> properties) {
        given = properties;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Work.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> tasks = new ArrayList<>();
        for (int task = 0; task < most; task++) {
            Map<String, String> settings = new HashMap<>(given);
            settings.put("out", given.get("out") + "/" + task);
            tasks.add(settings);
        }
        return tasks;
    }

    @Override
    public void stop() {}

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public String version() {
        return "1";
    }

    /** One of its tasks. */
    public static final class Work extends SinkTask {
        private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
        private static volatile long kept;
        private long nanos;
        private DataOutputStream out;

        @Override
        public void start(Map<String, String> given) {
            nanos = 1000 * Long.parseLong(given.get("cost_us"));
            try {
                out =
                        new DataOutputStream(
                                new BufferedOutputStream(new FileOutputStream(given.get("out"))));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            try {
                for (SinkRecord record : records) {
                    burn();
                    out.writeLong(System.nanoTime());
                    out.writeLong(ByteBuffer.wrap((byte[]) record.value()).getLong());
                }
                out.flush();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        /** Uses CPU time of its own thread, so that preemption does not change a record's cost. */
        private void burn() {
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

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
