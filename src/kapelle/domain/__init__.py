"""Pure types and rules: what a task is, which states it may take, which errors exist. No I/O, no clock."""
