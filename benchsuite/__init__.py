"""benchsuite: the pytest suite that measures speculative decoding and proves it correct."""
