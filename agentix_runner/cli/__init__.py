"""The commands `agentix-run` and `agentix`."""
