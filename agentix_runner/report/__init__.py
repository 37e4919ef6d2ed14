"""The report of one run or several: one HTML page that needs nothing else. `agentix report` is its command line."""
