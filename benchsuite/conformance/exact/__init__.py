"""Every outcome of a round and of whole runs of the engine, by enumeration."""
