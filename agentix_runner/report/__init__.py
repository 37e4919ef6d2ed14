"""The report of one run or several: one HTML page that needs nothing else. `agentix report` is its command line.

from agentix_runner.report import write_report

write_report(["runs/before", "runs/after"], "report.html")
"""

from .write import Written, watch, write_report

__all__ = ["Written", "watch", "write_report"]
