"""Page sources in the stores of others."""
