"""What concerns one person alone."""
