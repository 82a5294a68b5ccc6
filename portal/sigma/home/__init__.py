"""The home page of Sigma."""
