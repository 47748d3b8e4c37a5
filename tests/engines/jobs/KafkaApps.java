import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;

/**
 * Applications of Kafka Streams in one process. Arguments: NAME=US ..., of each application its
 * name, also of the topic that it reads, and the CPU time that it takes for a record.
 */
public final class KafkaApps {
    private KafkaApps() {}

    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    public static void main(String[] arguments) {
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            start(parts[0], 1000 * Long.parseLong(parts[1]));
        }
    }

    private static void start(String topic, long nanos) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, topic + "-app");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "127.0.0.1:9092");
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "2");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, "streams-" + topic);
        Class<?> bytes = Serdes.ByteArray().getClass();
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, bytes);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, bytes);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<byte[], byte[]>stream(topic).foreach((key, value) -> burn(nanos));
        new KafkaStreams(builder.build(), settings).start();
    }

    private static void burn(long nanos) {
        long end = THREADS.getCurrentThreadCpuTime() + nanos;
        while (THREADS.getCurrentThreadCpuTime() < end) {
            Thread.onSpinWait();
        }
    }
}
