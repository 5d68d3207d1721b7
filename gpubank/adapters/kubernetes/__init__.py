"""The API server: one connection, watched caches, the bank's objects and Events; Kueue's queues below it."""
