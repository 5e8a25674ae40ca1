"""How exchanges travel: one by one through encoded messages, or all clients at once."""
