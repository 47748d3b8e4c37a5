"""The lab engine, `labspe`."""
