import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;

/**
 * What one thread does with the records of KafkaFeed: it uses CPU time for each, and writes to a
 * file when it was done with it, and when it was due.
 */
final class KafkaDone {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static volatile long kept;
    private final long nanos;
    private final DataOutputStream out;

    KafkaDone(String file, long nanos) {
        this.nanos = nanos;
        try {
            out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(file)));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    void take(byte[] record) {
        burn();
        try {
            out.writeLong(System.nanoTime());
            out.writeLong(ByteBuffer.wrap(record).getLong());
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    void flush() {
        try {
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
}
