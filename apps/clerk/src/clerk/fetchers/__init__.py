"""Where documents come from: the four sources that are built in, one careful HTTP client, and what stores a document."""
