import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/**
 * Queries of Nexmark (github.com/nexmark/nexmark) over bids that are due as in Query.java: q18 (the
 * last bid of each bidder on each auction), q5 (the auctions with most bids, in windows of 10 s each
 * 2 s), q17 (counts and prices of each auction and day) and q19 (the ten best bids on each auction).
 * What Flink's planner makes of them is nobody's here: names, chains, threads.
 *
 * <p>ingest= is the file in which every n-th bid is written down as it comes in, out= that for
 * results: "finished due", where due is that of the bid from which the result came.
 */
public final class Sql {
    private Sql() {}

    private static final String Q18 =
            "SELECT due FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY ts"
                    + " DESC) AS place FROM bid) WHERE place <= 1";

    private static final String COUNTS =
            "SELECT auction, COUNT(*) AS bids, window_start, window_end FROM TABLE(HOP(TABLE bid,"
                    + " DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
                    + " GROUP BY auction, window_start, window_end";
    private static final String Q5 =
            "SELECT A.bids AS due FROM ("
                    + COUNTS
                    + ") AS A JOIN (SELECT MAX(bids) AS most, window_start, window_end FROM ("
                    + COUNTS
                    + ") GROUP BY window_start, window_end) AS M ON A.window_start = M.window_start"
                    + " AND A.window_end = M.window_end AND A.bids >= M.most";

    private static final String DAY = "DATE_FORMAT(ts, 'yyyy-MM-dd')";
    private static final String Q17 =
            "SELECT MAX(due) AS due, auction, "
                    + DAY
                    + " AS bid_day, COUNT(*) AS bids, COUNT(*) FILTER (WHERE price < 1000) AS low,"
                    + " COUNT(*) FILTER (WHERE price >= 1000 AND price < 5000) AS middle, COUNT(*)"
                    + " FILTER (WHERE price >= 5000) AS high, MIN(price) AS least, MAX(price) AS"
                    + " most, AVG(price) AS mean, SUM(price) AS total FROM bid GROUP BY auction, "
                    + DAY;

    private static final String Q19 =
            "SELECT due, auction, bidder, price FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY"
                    + " auction ORDER BY price DESC) AS place FROM bid) WHERE place <= 10";

    private static final Map<String, String> QUERIES =
            Map.of("q5", Q5, "q17", Q17, "q18", Q18, "q19", Q19);

    /** A bid: half of them go to the auction of the moment, the others to a hundred. */
    static final class Bid implements MapFunction<Long, Row> {
        @Override
        public Row map(Long due) {
            long mixed = (due * 0x9E3779B97F4A7C15L) >>> 17;
            long auction = mixed % 2 == 0 ? due / 1_000_000_000L % 1000 : mixed / 2 % 100;
            return Row.of(auction, mixed / 200 % 500, mixed / 7 % 10_000, due);
        }
    }

    static final class IsResult implements FilterFunction<Row> {
        @Override
        public boolean filter(Row row) {
            return row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            given.put(parts[0], parts[1]);
        }
        String job = given.getOrDefault("name", "sql");
        String prefix = job + "-";
        double rate = Double.parseDouble(given.getOrDefault("rate", "1000"));
        int every = Integer.parseInt(given.getOrDefault("every", "1"));

        Configuration settings = new Configuration();
        settings.setString(
                "execution.buffer-timeout.interval", given.getOrDefault("buffer_timeout", "1 ms"));
        settings.setString("table.exec.state.ttl", "60 s");
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(1);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        DataStream<Row> bids =
                environment
                        .fromSource(
                                new DataGeneratorSource<>(
                                        new Query.Due(job, rate, 0),
                                        1_000_000_000L,
                                        new Query.OpenLoop(job, rate),
                                        Types.LONG),
                                WatermarkStrategy.noWatermarks(),
                                prefix + "src")
                        .filter(new Query.Egress(given.getOrDefault("ingest", ""), every, 0))
                        .name(prefix + "ingest")
                        .map(new Bid())
                        .returns(
                                Types.ROW_NAMED(
                                        new String[] {"auction", "bidder", "price", "due"},
                                        Types.LONG,
                                        Types.LONG,
                                        Types.LONG,
                                        Types.LONG))
                        .name(prefix + "bid");
        tables.createTemporaryView(
                "bid",
                bids,
                Schema.newBuilder()
                        .column("auction", "BIGINT")
                        .column("bidder", "BIGINT")
                        .column("price", "BIGINT")
                        .column("due", "BIGINT")
                        .columnByExpression("ts", "TO_TIMESTAMP_LTZ(due / 1000000, 3)")
                        .watermark("ts", "ts - INTERVAL '0.1' SECOND")
                        .build());
        String query = QUERIES.get(given.getOrDefault("query", "q18"));
        tables.toChangelogStream(tables.sqlQuery(query))
                .filter(new IsResult())
                .name(prefix + "result")
                .map(row -> (Long) row.getField(0))
                .returns(Types.LONG)
                .name(prefix + "due")
                .filter(new Query.Egress(given.getOrDefault("out", ""), 1, 0))
                .name(prefix + "egress")
                .sinkTo(new DiscardingSink<>())
                .name(prefix + "sink");
        environment.execute(job);
    }
}
