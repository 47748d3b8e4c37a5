import java.nio.file.Path;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;

/**
 * Applications of Kafka Streams in one process. Arguments: FOLDER NAME=US ..., of each application
 * the topic that it reads, and the CPU time that it takes for a record. Each of its threads writes
 * what it is done with (KafkaDone) to a file in FOLDER/out-NAME-app.
 */
public final class KafkaApps {
    private KafkaApps() {}

    public static void main(String[] arguments) {
        for (int i = 1; i < arguments.length; i++) {
            String[] parts = arguments[i].split("=", 2);
            Path out = Path.of(arguments[0], "out-" + parts[0] + "-app");
            start(parts[0], 1000 * Long.parseLong(parts[1]), out);
        }
    }

    private static void start(String topic, long nanos, Path out) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, topic + "-app");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "127.0.0.1:9092");
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "2");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, "streams-" + topic);
        Class<?> bytes = Serdes.ByteArray().getClass();
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, bytes);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, bytes);
        StreamsBuilder builder = new StreamsBuilder();
        ThreadLocal<KafkaDone> done = ThreadLocal.withInitial(() -> doneOf(out, nanos));
        builder.<byte[], byte[]>stream(topic)
                .foreach(
                        (key, value) -> {
                            done.get().take(value);
                            done.get().flush();
                        });
        new KafkaStreams(builder.build(), settings).start();
    }

    private static KafkaDone doneOf(Path out, long nanos) {
        return new KafkaDone(out.resolve(Thread.currentThread().getName()).toString(), nanos);
    }
}
