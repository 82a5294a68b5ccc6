"""The shipped deployment on this computer: the units of `deploy/` on three hosts, without systemd."""
