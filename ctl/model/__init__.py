"""What policies speak of: topology, graph, frames, urgency, schedule. Plain immutable data."""
