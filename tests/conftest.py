"""What all tests share. Nothing here imports Django: the unit tests run without it."""
