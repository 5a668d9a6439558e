"""The page of jobs: `herringbone page` serves it on this machine, and `job.report` writes it into one file.

events, record, log -> live.py (reads) -> data.py (pure) -> JSON -> server.py or report.py -> static/ (the browser)
"""
