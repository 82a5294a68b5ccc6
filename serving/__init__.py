"""Several processes on this host that share one port, such as the workers of the web server and of the resolver."""
