"""Training programs on real data, each of which runs eagerly, co-executed, or both side by side."""
