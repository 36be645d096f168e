"""Pure types and rules: what a task is, its states, the errors. No I/O, no clock."""
