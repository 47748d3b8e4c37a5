import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Time;

/**
 * A broker (KRaft, of one node) that feeds itself: with single records, and with some at once.
 *
 * <p>A record is the moment (System.nanoTime) at which it was due. Arguments: FILE (the broker's
 * properties) RATES (a file, read ten times a second: how often a second a record comes to the topic
 * "alarms", by a Poisson process, and how many come to "archive" each two seconds). Other numbers
 * there let both begin anew, with the same arrivals each time.
 */
public final class KafkaFeed {
    private KafkaFeed() {}

    private static final String WHERE = "127.0.0.1:9092";
    private static final double BURST_NANOS = 2e9;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(arguments[0]))) {
            properties.load(reader);
        }
        String[] format = {"format", "-t", "c2NoZWQtY3RsLWthZmthMQ", "-c", arguments[0]};
        if (StorageTool.execute(format, System.err) != 0) {
            throw new IllegalStateException("the broker's folder cannot be formatted");
        }
        new KafkaRaftServer(new KafkaConfig(properties), Time.SYSTEM).startup();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", WHERE))) {
            List<NewTopic> topics =
                    List.of(
                            new NewTopic("alarms", Optional.of(1), Optional.empty()),
                            new NewTopic("archive", Optional.of(2), Optional.empty()));
            admin.createTopics(topics).all().get(1, TimeUnit.MINUTES);
        }
        System.out.println("ready");
        feed(Path.of(arguments[1]));
    }

    private static void feed(Path file) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", WHERE);
        settings.put("acks", "1");
        settings.put("enable.idempotence", "false");
        settings.put("linger.ms", "0");
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(
                        settings, new ByteArraySerializer(), new ByteArraySerializer());
        String[] rates = {"0", "0"};
        SplittableRandom random = new SplittableRandom(1);
        double alarm = 0;
        double burst = 0;
        long looked = 0;
        while (true) {
            long now = System.nanoTime();
            if (now - looked > 100_000_000L) {
                looked = now;
                String[] wanted = read(file, rates);
                if (!String.join(" ", wanted).equals(String.join(" ", rates))) {
                    rates = wanted;
                    random = new SplittableRandom(1);
                    alarm = now;
                    burst = now;
                }
            }
            double rate = Double.parseDouble(rates[0]);
            int several = Integer.parseInt(rates[1]);
            while (rate > 0 && alarm <= now) {
                send(producer, "alarms", (long) alarm);
                alarm += -Math.log(1 - random.nextDouble()) * 1e9 / rate;
            }
            while (several > 0 && burst <= now) {
                for (int i = 0; i < several; i++) {
                    send(producer, "archive", (long) burst);
                }
                burst += BURST_NANOS;
            }
            LockSupport.parkNanos(1_000_000L);
        }
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, long due) {
        byte[] value = ByteBuffer.allocate(Long.BYTES).putLong(due).array();
        producer.send(new ProducerRecord<>(topic, value));
    }

    private static String[] read(Path file, String[] otherwise) {
        try {
            String[] words = Files.readString(file).trim().split(" ");
            return words.length == 2 ? words : otherwise;
        } catch (IOException beingWritten) {
            return otherwise;
        }
    }
}
