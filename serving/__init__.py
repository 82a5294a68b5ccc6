"""Processes of this host that share one port: the workers of the web server and of the resolver."""
