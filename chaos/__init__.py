"""Things broken on purpose, for longer than a test may take: nothing may be lost."""
