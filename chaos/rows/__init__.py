"""One module per row of the table of faults."""
