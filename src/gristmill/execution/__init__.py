"""Running jobs in child processes: the child's side (child, context, run) and the supervisor's side (children, crew)."""
