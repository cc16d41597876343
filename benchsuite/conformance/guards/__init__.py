"""What a step must not do, watched on a CPU: read the device, mix devices, launch what a replay would not."""
