"""Who, where and what was voted, from the text of minutes."""
