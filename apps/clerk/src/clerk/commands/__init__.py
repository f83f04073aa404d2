"""What commands do that nobody else needs, without the command line."""
