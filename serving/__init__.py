"""What server processes share: one port for several processes, rates of requests, clients of Redis, and beat."""
