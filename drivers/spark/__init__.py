"""Apache Spark 4.x, Structured Streaming, unmodified."""
