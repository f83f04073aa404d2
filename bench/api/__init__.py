"""What it costs to look: the HTTP API and the dashboard over a ledger of 1,000,000 jobs."""
