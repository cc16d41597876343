"""State machines and drawn runs over arena and engine, and tests by samples."""
