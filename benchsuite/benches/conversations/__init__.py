"""Conversations asked of servers and of the engine turn by turn, with the prefix in a cache or not; traces replayed."""
