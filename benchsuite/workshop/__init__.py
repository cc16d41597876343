"""The project's own tools, which no wheel holds: bugs, mutants, machines, native code, validation."""
