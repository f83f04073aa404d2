"""What each application was promised to do, done as its operators do it."""
