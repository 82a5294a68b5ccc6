"""Sessions of the simulator on a host of the portal, for the console: each is a process with limits."""
