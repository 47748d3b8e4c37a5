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
        private KafkaDone done;

        @Override
        public void start(Map<String, String> given) {
            done = new KafkaDone(given.get("out"), 1000 * Long.parseLong(given.get("cost_us")));
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            for (SinkRecord record : records) {
                done.take((byte[]) record.value());
            }
            done.flush();
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
