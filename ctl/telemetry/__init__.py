"""What a controller saw, as files."""
