"""What the kernel tells about an engine's threads, without the engine's help."""
